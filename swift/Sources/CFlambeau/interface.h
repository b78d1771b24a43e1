/* The header of the installed library, which pkg-config finds. */
#include <flambeau.h>
