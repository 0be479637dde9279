/* Owns: becoming the engine, and saying why when the system refuses. */
#ifndef OPENCOTI_LAUNCH_H
#define OPENCOTI_LAUNCH_H

#include "folder.h"
#include "index.h"

/* Replace this process by the engine of the folder: same process id, working directory and streams, and the same
 * environment, except that a given LD_LIBRARY_PATH gets the folder in front. */
_Noreturn void launch(const struct index *index, const struct folder *folder, char **argv);

#endif
