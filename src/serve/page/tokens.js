// The text of an answer as the tokens that it is made of.
import { kindOf } from './origins.js';

const KINDS = ['s0', 's1', 's2', 's3', 's4', 'early'];

export class Tokens {
  constructor() {
    this.text = '';
    this.list = []; // {start, end, kind, logprob, top: [{text, logprob}]}, in order, without gaps but for text of no token
  }

  // `token`: {text, source, early}; `score`: {logprob, top} or undefined.
  add(token, score) {
    const start = this.text.length;
    this.text += token.text;
    this.list.push({ start, end: this.text.length, kind: kindOf(token), ...score });
  }

  addText(text) {
    this.text += text;
  }

  // What [start, end) is made of, in order: {token, index, start, end}; token is null where there is none.
  pieces(start, end) {
    const pieces = [];
    if (start >= end) return pieces;
    let at = start;
    for (let i = this.firstEndingAfter(start); i < this.list.length && this.list[i].start < end; ++i) {
      const token = this.list[i];
      if (token.end <= at) continue; // a token whose letters came with a later one
      if (token.start > at) pieces.push({ token: null, index: -1, start: at, end: token.start });
      const from = Math.max(at, token.start);
      at = Math.min(end, token.end);
      pieces.push({ token, index: i, start: from, end: at });
    }
    if (at < end) pieces.push({ token: null, index: -1, start: at, end });
    return pieces;
  }

  firstEndingAfter(position) {
    let low = 0;
    let high = this.list.length;
    while (low < high) {
      const middle = (low + high) >> 1;
      if (this.list[middle].end > position) high = middle;
      else low = middle + 1;
    }
    return low;
  }

  // For storage: lengths, kinds and probabilities; the likeliest others are not kept.
  save() {
    return this.list.map(({ start, end, kind, logprob }) => {
      const saved = [start, end - start, KINDS.indexOf(kind)];
      if (logprob !== undefined) saved.push(Number(logprob.toFixed(3)));
      return saved;
    });
  }

  static load(text, saved) {
    const tokens = new Tokens();
    tokens.text = String(text);
    let last = 0;
    for (const entry of Array.isArray(saved) ? saved : []) {
      const [start, length, kind, logprob] = Array.isArray(entry) ? entry : [];
      const sound = Number.isInteger(start) && Number.isInteger(length) && start >= last && length >= 0
        && start + length <= tokens.text.length && KINDS[kind];
      if (!sound) break;
      last = start + length;
      tokens.list.push({ start, end: last, kind: KINDS[kind], ...(Number.isFinite(logprob) ? { logprob } : {}) });
    }
    return tokens;
  }
}

// The scores in an event's choice, one for each of its tokens: of a chat, or of a completion.
export function scoresOf(choice) {
  const { logprobs } = choice;
  if (logprobs?.content) {
    return logprobs.content.map(({ logprob, top_logprobs: top }) => (
      { logprob, top: (top ?? []).map((other) => ({ text: other.token, logprob: other.logprob })) }));
  }
  if (logprobs?.token_logprobs) {
    return logprobs.token_logprobs.map((logprob, i) => ({
      logprob,
      top: Object.entries(logprobs.top_logprobs?.[i] ?? {}).map(([text, value]) => ({ text, logprob: value })).sort((a, b) => b.logprob - a.logprob),
    }));
  }
  return [];
}
