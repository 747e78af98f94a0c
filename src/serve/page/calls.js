// Calls of tools at the end of an answer, as models write them: <tool_call>, JSON or tags, </tool_call>.
const OPEN = '<tool_call>';
const CLOSE = '</tool_call>';

// Where the text is within [from, to), and the calls after it: {text: [from, to], calls: [{name, shown, open}]}; `shown` is for people, `open`
// says that more of the call may come.
export function splitCalls(text, from, to) {
  const part = text.slice(from, to);
  const first = part.indexOf(OPEN);
  if (first < 0) return { text: [from, to], calls: [] };
  const calls = [];
  let at = first;
  while (at >= 0) {
    const close = part.indexOf(CLOSE, at);
    const body = part.slice(at + OPEN.length, close < 0 ? undefined : close).trim();
    calls.push({ ...readCall(body), open: close < 0 });
    at = close < 0 ? -1 : part.indexOf(OPEN, close);
  }
  return { text: [from, from + part.slice(0, first).trimEnd().length], calls };
}

// {name, shown} of what stands between the marks, as far as it has come.
function readCall(body) {
  const tagged = /^<function=([^>]*)>/.exec(body);
  if (tagged) return { name: tagged[1], shown: JSON.stringify(taggedArguments(body), null, 2) };
  try {
    const call = JSON.parse(body);
    return { name: String(call.name), shown: JSON.stringify(call.arguments ?? call.parameters ?? {}, null, 2) };
  } catch {
    return { name: /"name"\s*:\s*"([^"]*)"/.exec(body)?.[1] ?? '', shown: body };
  }
}

function taggedArguments(body) {
  const values = {};
  for (const [, name, value] of body.matchAll(/<parameter=([^>]*)>\n?([^]*?)(?:\n<\/parameter>|$)/g)) values[name] = value;
  return values;
}

// JSON with a line for each member; null where the text is no object or list.
export function prettyJson(text) {
  const begin = text.trimStart()[0];
  if (begin !== '{' && begin !== '[') return null;
  try {
    return JSON.stringify(JSON.parse(text), null, 2);
  } catch {
    return null;
  }
}

// A call's pieces in a stream as a model would have written them, for one way of telling calls from text. `seen`: the number of calls so far.
export function joinCalls(pieces, seen) {
  let text = '';
  let count = seen;
  for (const { index, function: { name, arguments: more } } of pieces) {
    if (index >= count) {
      text += `${count > 0 ? `}\n${CLOSE}\n` : ''}${OPEN}\n{"name": ${JSON.stringify(name)}, "arguments": `;
      count = index + 1;
    }
    text += more ?? '';
  }
  return { text, count };
}

export const END_OF_CALL = `}\n${CLOSE}`;
