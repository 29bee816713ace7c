#pragma once

// One token of every sequence, again and again: for streaming. Everything that a call works out
// anew (who runs what, packed weights, memory) is kept from step to step.

#include <memory>

#include "call.h"

namespace unpad {

class Stepper {
  public:
    virtual ~Stepper() = default;
    virtual void pack() = 0;  // takes the matrices as they are now
    virtual void step() = 0;  // allocates nothing
};

// `program` and the memory that the call names must outlive the stepper; every sequence of the call
// has one token. Throws ProgramError, std::bad_alloc.
std::unique_ptr<Stepper> make_stepper(const Program& program, const Call& call);

}  // namespace unpad
