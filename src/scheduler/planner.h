// The decision of a step, as a pure function of the scheduler's state.
#pragma once

#include "scheduler/state.h"
#include "scheduler/step_plan.h"

namespace tenon {

// Writes the plan of step state.last_applied + 1; copies are left to Scheduler::apply(). See
// scheduler.h for the rules. Bounded by O(running + blocks touched); does not allocate once `plan`
// is warm.
void plan_step(const SchedulerState& state, const StepBudget& budget, StepPlan* plan);

}  // namespace tenon
