/* Owns: becoming the engine, and saying why when the system refuses. */
#ifndef OPENCOTI_LAUNCH_H
#define OPENCOTI_LAUNCH_H

#include "folder.h"
#include "index.h"

/* Replace this process by the engine of the folder: same process id, environment, working directory and streams. */
_Noreturn void launch(const struct index *index, const struct folder *folder, char **argv);

#endif
