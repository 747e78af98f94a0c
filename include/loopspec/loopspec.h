// libloopspec: load a looped transformer and serve requests with it.
//
//   loopspec::Engine engine({.model = "models/ouro-demo"});
//   engine.Generate({.prompt = "Once upon a time"}, [](const loopspec::Token& token) {
//     std::cout << token.text << std::flush;
//     return true;
//   });
//
// Any number of threads may use one engine; requests that run at the same time share its steps, and
// each gets the text that it gets alone. Link with find_package(loopspec) and loopspec::loopspec.
// Bad files and requests throw std::runtime_error with one sentence that names the thing; a request
// that comes when too many wait already throws QueueFull, which is one too.
//
//   engine.h    EngineOptions, Engine, ModelFacts
//   request.h   Request: prompt, sampling (sampling.h), ends, what to tell
//   stream.h    Stream: a request under way
//   token.h     Token, Statistics: what comes back
//   metrics.h   EngineMetrics: where an engine stands
//   trace.h     TraceEvent: what became of branches
//
// What may be relied on: Engine and Stream keep their layout, since all they hold is behind one
// pointer. Structs of options, requests and results get new members at their ends or among their
// kind, so programs are compiled anew, not rewritten; members that "follow the decoder" may be
// removed. The server, generate, chat and batch use nothing else.
#pragma once

#include "loopspec/encode_limits.h"
#include "loopspec/engine.h"
#include "loopspec/metrics.h"
#include "loopspec/queue_full.h"
#include "loopspec/request.h"
#include "loopspec/sampling.h"
#include "loopspec/stream.h"
#include "loopspec/token.h"
#include "loopspec/trace.h"
