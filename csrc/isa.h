#pragma once

// Which kernels were built and which can run here: two questions.

#include <string>
#include <vector>

#include "kernels.h"

namespace unpad {

const char* name_of(Tier tier);
std::vector<Tier> built_tiers();
bool can_run(Tier tier);

// The active tier: the best that can run, or what UNPAD_ISA or select_tier say.
Tier active_tier();

// Throws std::invalid_argument for a name that is unknown, not built, or not supported here.
void select_tier(const std::string& name);

const TierTable& tables(Tier tier);

}  // namespace unpad
