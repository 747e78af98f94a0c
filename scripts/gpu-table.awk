# Draws the table of scripts/gpu-check.py from lines "key value": what was measured, the peer, what is asked and aimed at.
# The last value of a key counts. -v names="twin names".
{ value[$1] = $2 }

function have(key) { return key in value }
function percent(key) { return have(key) ? sprintf("%.1f %%", 100 * value[key]) : "-" }
function ms(key) { return have(key) ? sprintf("%.3f ms", value[key]) : "-" }
function over(a, b) { return have(a) && have(b) && value[b] > 0 ? value[a] / value[b] : "" }
function times(x) { return x != "" ? sprintf("%.2fx", x) : "-" }

# x: the figure, "" when there is none; sign 1: at least, -1: at most.
function verdict(x, least, aim, sign) {
  if (x == "") return "not measured"
  if (sign * x >= sign * aim) return "aim met"
  if (sign * x >= sign * least) return "met"
  return "MISSED"
}
function row(what, ours, peer, asked, aim, outcome) {
  printf "| %-66s | %-26s | %-22s | %-9s | %-9s | %-12s |\n", what, ours, peer, asked, aim, outcome
}

# A recurrence of one row: share of the bandwidth.
function share_row(what, model, peer_name, least, aim,   key, peer_key, peer) {
  key = model ".step.rows1.x1."
  peer_key = "peer." peer_name ".B.rows1."
  peer = ms(peer_key "ms")
  if (have(peer_key "TBps") && have("bandwidth_TBps"))
    peer = peer sprintf(", %.1f %%", 100 * value[peer_key "TBps"] / value["bandwidth_TBps"])
  row(what, ms(key "core_ms") ", " percent(key "core_share"), peer, least " %", aim " %",
      verdict(have(key "core_share") ? 100 * value[key "core_share"] : "", least, aim, 1))
}
# Many rows: time over one row.
function rows_row(what, model, peer_name, rows, least, aim,   x, y) {
  x = over(model ".step.rows" rows ".x1.core_ms", model ".step.rows1.x1.core_ms")
  y = over("peer." peer_name ".B.rows" rows ".ms", "peer." peer_name ".B.rows1.ms")
  row(what, ms(model ".step.rows" rows ".x1.core_ms") ", " times(x),
      ms("peer." peer_name ".B.rows" rows ".ms") ", " times(y), sprintf("%.2fx", least), sprintf("%.2fx", aim),
      verdict(x, least, aim, -1))
}
# More than 32 rows: milliseconds.
function wide_row(what, model, peer_name, rows, least, aim,   key, peer) {
  key = model ".step.rows" rows ".x1.core_ms"
  peer = "peer." peer_name ".B.rows" rows ".ms"
  row(what, ms(key), ms(peer), sprintf("%.2f ms", least), sprintf("%.2f ms", aim),
      verdict(have(key) ? value[key] : "", least, aim, -1))
}
# Long contexts and many requests: share of 4.5 TB/s, the bandwidth that the shares were asked at.
function long_row(what, key, least, aim,   x, share) {
  share = key ".core_share"
  x = have(share) && have("bandwidth_TBps") ? 100 * value[share] * value["bandwidth_TBps"] / 4.5 : ""
  row(what, ms(key ".core_ms") ", " (x != "" ? sprintf("%.1f %%", x) : "-"), "", least " %", aim " %", verdict(x, least, aim, 1))
}
# A prompt: milliseconds.
function prompt_row(what, model, family, length_, least, aim,   key, peer) {
  key = model ".prefill." length_ ".ms"
  peer = "peer." family ".prefill." length_ ".ms"
  row(what ", " length_ " tokens", have(key) ? sprintf("%.1f ms", value[key]) : "-",
      have(peer) ? sprintf("%.1f ms", value[peer]) : "-", least " ms", aim " ms",
      verdict(have(key) ? value[key] : "", least, aim, -1))
}
function speed_row(what, key, least, aim,   x) {
  x = have(key ".loopspec.speedup") ? value[key ".loopspec.speedup"] : ""
  row(what, times(x) (x != "" ? sprintf(" (%.1f tokens/s)", value[key ".loopspec.tokens_per_second"]) : ""), "",
      sprintf("%.1fx", least), sprintf("%.1fx", aim), verdict(x, least, aim, 1))
}
function portion_row(what, key, least, aim, sign,   x) {
  x = have(key) ? 100 * value[key] : ""
  row(what, percent(key), "", (sign < 0 ? "under " : "") least " %", (sign < 0 ? "under " : "") aim " %",
      verdict(x, least, aim, sign))
}
function equal_row(name, asked,   key, outcome) {
  key = name ".equal."
  outcome = "not measured"
  if (have(key "tokens"))
    outcome = value[key "all"] != "yes" ? "NOT EQUAL" : value[key "tokens"] + 0 >= asked ? "met" : "equal, fewer"
  row("greedy LoopSpec == autoregressive, ids and logits, " name,
      have(key "tokens") ? value[key "tokens"] " tokens x " value[key "sets"] " depth sets" : "-", "", asked, "", outcome)
}

END {
  if (have("bandwidth_TBps")) printf "read bandwidth %.3f TB/s; bf16, 1024 tokens of context unless said\n", value["bandwidth_TBps"]
  row("", "ours", "peer", "at least", "aim", "")
  row("---", "---", "---", "---", "---", "---")
  share_row("Ouro-1.4B recurrence, 1 row: share of bandwidth", "ouro-1.4b", "ouro-1.4B", 70, 85)
  rows_row("the same, 4 rows at 4 depths: time over 1 row", "ouro-1.4b", "ouro-1.4B", 4, 1.40, 1.27)
  share_row("Raven-Llama core with adapter, 1 row: share of bandwidth", "raven-llama", "raven-llama-core", 65, 80)
  rows_row("the same, 32 rows over 16 depths: time over 1 row", "raven-llama", "raven-llama-core", 32, 1.50, 1.35)
  wide_row("Ouro-1.4B recurrence, 64 rows over 4 depths", "ouro-1.4b", "ouro-1.4B", 64, 1.8, 1.4)
  wide_row("the same, 128 rows", "ouro-1.4b", "ouro-1.4B", 128, 2.2, 1.8)
  wide_row("the same, 256 rows", "ouro-1.4b", "ouro-1.4B", 256, 3.2, 2.4)
  wide_row("Raven-Llama core with adapter, 64 rows over 16 depths", "raven-llama", "raven-llama-core", 64, 0.50, 0.42)
  wide_row("the same, 128 rows", "raven-llama", "raven-llama-core", 128, 0.56, 0.48)
  wide_row("the same, 256 rows", "raven-llama", "raven-llama-core", 256, 0.85, 0.65)
  at = ".step.context16384.requests1.depths"
  long_row("Ouro-1.4B, 1 row, context 16384: share of 4.5 TB/s", "ouro-1.4b" at "1.rows1.x1", 75, 82)
  long_row("the same, 4 rows at 4 depths, context 4096", "ouro-1.4b.step.context4096.requests1.depths4.rows4.x1", 72, 78)
  long_row("the same, 4 rows at 4 depths, context 16384", "ouro-1.4b" at "4.rows4.x1", 75, 80)
  long_row("the same, 8 rows at 2 depths, context 16384", "ouro-1.4b" at "2.rows8.x1", 70, 78)
  long_row("Raven-Llama, 16 rows at 16 depths, context 8000", "raven-llama.step.context8000.requests1.depths16.rows16.x1", 70, 76)
  at = ".step.context1024.requests"
  long_row("Ouro-1.4B, 8 requests x 4 rows", "ouro-1.4b" at "8.depths4.rows32.x1", 66, 74)
  long_row("the same, 32 requests x 4 rows", "ouro-1.4b" at "32.depths4.rows128.x1", 68, 75)
  prompt_row("prompt of Ouro-1.4B", "ouro-1.4b", "ouro", 1024, 21, 18)
  prompt_row("the same", "ouro-1.4b", "ouro", 4096, 82, 72)
  prompt_row("the same", "ouro-1.4b", "ouro", 16384, 460, 420)
  prompt_row("prompt of Raven-Llama with P and C (peer: core alone)", "raven-llama", "raven", 1024, 54, 47)
  prompt_row("the same", "raven-llama", "raven", 8000, 500, 440)

  ours = have("ouro-1.4b.time.1024.ar.tokens_per_second") ? value["ouro-1.4b.time.1024.ar.tokens_per_second"] : ""
  head = "peer.ouro-1.4B.C.rows1.ms"; block = "peer.ouro-1.4B.B.rows1.ms"
  peer = have(head) && have(block) ? 1000 / (4 * value[block] + value[head]) : ""
  ratio = ours != "" && peer != "" ? ours / peer : ""
  row("Ouro-1.4B autoregressive tokens/s over the peer's (4 B + head)",
      (ours != "" ? sprintf("%.1f", ours) : "-") ", " times(ratio), peer != "" ? sprintf("%.1f", peer) : "-", "1.4x", "1.7x",
      verdict(ratio, 1.4, 1.7, 1))
  speed_row("LoopSpec (1,2) over own AR, Ouro-1.4B, 0.90/0.075, 128", "ouro-1.4b.time.128", 2.7, 3.0)
  speed_row("the same, 1024", "ouro-1.4b.time.1024", 2.3, 2.5)
  speed_row("LoopSpec (2,8) over own AR, Raven-Llama, 0.92/0.075", "raven-llama.time.1024", 4.7, 5.3)
  portion_row("LoopSpec step: share of its own floor, Ouro-1.4B", "ouro-1.4b.time.1024.loopspec.floor_share", 65, 80, 1)
  portion_row("the same, Raven-Llama", "raven-llama.time.1024.loopspec.floor_share", 65, 80, 1)
  portion_row("host and launch gaps, share of a LoopSpec step, Ouro-1.4B", "ouro-1.4b.time.1024.loopspec.gap_share", 8, 3, -1)
  portion_row("the same, Raven-Llama", "raven-llama.time.1024.loopspec.gap_share", 8, 3, -1)
  equal_row("ouro-demo", 10000)
  equal_row("raven-demo", 10000)
  n = split(names, list, " ")
  for (i = 1; i <= n; ++i) equal_row(list[i], 1000)
  for (i = 1; i <= n; ++i) {
    key = list[i] ".agreement."
    if (have(key "measured"))
      row("agreement of the first drafts, twin " list[i], percent(key "measured"), "", percent(key "asked"), "", "")
  }
  m = split("cuda_test cuda_cpu_test cuda_equality_test sanitizer_memcheck sanitizer_racecheck", tests, " ")
  for (i = 1; i <= m; ++i) {
    key = "tests." tests[i]
    row("tests: " tests[i], have(key) ? value[key] : "-", "", "ok", "",
        !have(key) ? "not run" : value[key] == "ok" ? "met" : value[key])
  }
  print "LoopSpec speeds on twins are TIMING SIMULATIONS: random weights, verification outcomes drawn at the rates given."
}
