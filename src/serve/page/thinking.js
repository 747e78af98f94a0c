// Reasoning models think first, between <think> and </think>. The first tag may be missing, where the template has opened it.
const OPEN = '<think>';
const CLOSE = '</think>';

// Where thinking and answer are in `text`, as ranges: {thinking: [from, to] or null, answer: [from, to], open: still thinking}.
// `opened`: the prompt ended in <think>.
export function splitThinking(text, opened = false) {
  const begin = text.length - text.trimStart().length;
  let from = -1;
  if (text.startsWith(OPEN, begin)) from = begin + OPEN.length;
  else if (opened) from = 0;
  const close = text.indexOf(CLOSE, Math.max(from, 0));
  if (from < 0) {
    const other = text.indexOf(OPEN);
    // </think> alone closes what the prompt opened; a <think> further on is part of the text.
    if (close < 0 || (other >= 0 && other < close)) return { thinking: null, answer: [0, text.length], open: false };
    from = 0;
  }
  if (close < 0) return { thinking: trimmed(text, from, text.length - begunTag(text)), answer: [text.length, text.length], open: true };
  return { thinking: trimmed(text, from, close), answer: trimmed(text, close + CLOSE.length, text.length), open: false };
}

// The answer alone: what is copied, and what the model is told of its earlier turns.
export function withoutThinking(text) {
  const { answer } = splitThinking(text);
  return text.slice(...answer);
}

function trimmed(text, from, to) {
  let begin = from;
  let end = to;
  while (begin < end && text[begin].trim() === '') begin += 1;
  while (end > begin && text[end - 1].trim() === '') end -= 1;
  return [begin, end];
}

// How many characters at the end may become </think>: not shown before that is known.
function begunTag(text) {
  for (let length = CLOSE.length - 1; length > 0; --length) {
    if (text.endsWith(CLOSE.slice(0, length))) return length;
  }
  return 0;
}
