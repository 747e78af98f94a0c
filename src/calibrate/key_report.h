// What calibrate --keys found, as tables and as JSON.
#pragma once

#include <string>

#include "base/json_fwd.h"
#include "calibrate/key_judge.h"
#include "calibrate/key_residuals.h"

namespace loopspec {

struct KeyReport {
  std::string model, chip, date, version, command;
  std::string fitted, judged;  // names of the texts
  ModelSpec spec;
  int readouts = 1;  // depths that C keeps planes for
  int span = 0, text_tokens = 0;
  KeyResiduals residuals;
  KeyJudgement judgement;

  // Bytes of a position beyond the window, and of bf16 keys.
  int64_t Bytes(const KeyPlan& plan) const { return plan.BytesPerPosition(spec, readouts); }
  int64_t BytesOfBf16() const;
  // What decodes with the proposed plan: "loops:r6,r4,r3", "int8".
  std::string KvType() const;
};

std::string KeyTables(const KeyReport& report);
OrderedJson KeyJson(const KeyReport& report);

}  // namespace loopspec
