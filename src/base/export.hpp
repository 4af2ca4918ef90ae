// What libattend exports for libattend_ring of the same version. No installed header declares it.
#pragma once

#include "attend/export.h"

#define ATTEND_FOR_RING ATTEND_API
