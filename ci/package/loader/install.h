/* Owns: bringing the engine's folder into the state that the index wants, with the least work. */
#ifndef OPENCOTI_INSTALL_H
#define OPENCOTI_INSTALL_H

#include "archive.h"
#include "folder.h"
#include "index.h"

/* On return every extracted file of the index is in the folder with the right bytes, every part has the right bytes in
 * the artifact, and nothing else can be loaded from the folder. Costs one stat per file when that was so before. Ends the program when it cannot be had. */
void install(const struct archive *archive, const struct index *index, const struct folder *folder);

#endif
