// How tenants divide the decoder, as pure functions: whose sequences take part in a step, and how
// many cells each may fill.
//
// Tenants divide the tokens by weight. Each has a count of the tokens that it got, over its weight,
// and a step is filled turn by turn from the tenant with the lowest count, as far as a turn is a
// token. The step is full when that tenant has no sequence left to give a turn to: more rows of
// others would only make the step longer for it. So one answer of a tenant beside 64 of another
// shares its steps with one or two of them at a time, and two tenants of equal weight get as many
// tokens per second, however many answers each has.
//
// What a tenant leaves unused is lent out. A tenant without a sequence that decodes is not counted,
// and comes back without a claim; and rows that hardly make the step longer are given to sequences
// beyond what is due to them. Their tokens are counted, but a tenant never owes more than
// kMostOwed of them.
//
// Which sequences take part changes no text: a row's result depends on that row alone.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "decode/step_cost.h"
#include "engine/schedule/schedule.h"

namespace loopspec {

// One sequence that decodes.
struct TurnView {
  int tenant = 0;       // index into the tenants
  int priority = 0;     // within its tenant: the lower comes first
  int64_t last = 0;     // the step that gave it its last token: within a priority all take turns
  int rows = 1;         // that would advance if it had the step to itself
  int64_t context = 0;  // committed positions
};

enum class Turn : char { kWaits, kDue, kLent };

// Tokens that a tenant may be ahead of the one that got least for its weight.
inline constexpr double kMostOwed = 64;

// Kept between steps, so that a step allocates nothing.
struct TurnSchedule {
  std::vector<TurnView> sequences;  // all that decode, the oldest first: the caller's
  std::vector<Turn> turns;          // of these

  struct Queue {
    int tenant = 0;
    size_t next = 0, end = 0;  // of `order`
    double got = 0;            // tokens over the weight, with those of the turns given
  };
  std::vector<int> order;  // sequences by tenant, in the order of their turns
  std::vector<Queue> queues;
};

// `tenants`: at least those of the sequences.
void ScheduleTurns(std::span<const TenantView> tenants, const StepCost& cost,
                   TurnSchedule& schedule);

// What a token at this context is counted as: 1, and more where attention to the context costs more
// than several rows do.
double TokenCharge(const StepCost& cost, int64_t context);

// How many cells each running sequence may fill, given their tenants: one for its first branch, and
// of the rest its part by weight. A sequence uses no more than kCellsUsed of them; what is left is
// divided equally. One cell for each sequence is kept back, so that newcomers find a free one,
// unless `alone`: then no other sequence can come.
inline constexpr int kCellsUsed = 32;

void ShareCells(std::span<const int> tenant_of, std::span<const TenantView> tenants, int cells,
                bool alone, std::vector<int>& shares);

}  // namespace loopspec
