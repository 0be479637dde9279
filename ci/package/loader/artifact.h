/* Owns: opening the file that this process runs from. */
#ifndef OPENCOTI_ARTIFACT_H
#define OPENCOTI_ARTIFACT_H

/* Open it for reading; ends the program when that is not possible. */
int open_artifact(void);

/* An absolute path that leads to the open artifact, for the engine. */
const char *artifact_path(int fd);

/* Give each of the descriptors 0 to 2 that the caller closed a harmless one until the engine starts. */
void guard_standard_streams(void);

#endif
