/* Appends each name that a C library asks getenv for to the file that READ_VARIABLES names. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <string.h>
#include <unistd.h>

typedef char *(*Getenv)(const char *);

static char *ask(const char *function, const char *name) {
    static int file = -1;
    Getenv asked = (Getenv)dlsym(RTLD_NEXT, function);
    if (file < 0)
        file = open(asked("READ_VARIABLES"), O_WRONLY | O_CREAT | O_APPEND, 0600);
    if (write(file, name, strlen(name)) < 0 || write(file, "\n", 1) < 0)
        _exit(1);
    return asked(name);
}

char *getenv(const char *name) { return ask("getenv", name); }
char *secure_getenv(const char *name) { return ask("secure_getenv", name); }
