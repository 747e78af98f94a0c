// The timeline of branches: what the decoder writes is what the library gives out.
#pragma once

#include "loopspec/trace.h"
