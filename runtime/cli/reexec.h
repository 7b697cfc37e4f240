/* Passive waiting: libgomp reads its waiting policy when it is loaded, so a tool that did not get
 * one starts itself again with it. Threads that spin would steal the cores of other ranks. */
#ifndef MGPU_CLI_REEXEC_H
#define MGPU_CLI_REEXEC_H

/* Returns when the environment is right (or the program cannot be started again). */
void mgpu_reexec_passive(char **argv);

#endif
