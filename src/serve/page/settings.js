// The settings' fields: what they say, what they remember, what a request takes from them.
import { $ } from './dom.js';

const SAMPLING = Array.from(document.querySelectorAll('[data-sampling]'), (input) => input.id); // as a request names them
const CHECKS = ['colour', 'code-origins', 'markdown', 'probabilities', 'watch', 'keep'];
const CHOICES = 'loopspec.checks';
const TOP = 5; // likeliest tokens beside each one

// Browsers may forbid storage.
export function storage(kind) {
  try {
    window[kind].getItem('');
    return window[kind];
  } catch {
    return null;
  }
}

export function checked(id) {
  return $(id).checked;
}

// What the boxes were when the page was last open, and after every change.
export function rememberChecks(changed) {
  const kept = storage('localStorage');
  let before = {};
  try {
    before = JSON.parse(kept?.getItem(CHOICES) ?? '{}') ?? {};
  } catch {
    // something else's
  }
  for (const id of CHECKS) {
    if (typeof before[id] === 'boolean') $(id).checked = before[id];
    $(id).addEventListener('change', () => {
      kept?.setItem(CHOICES, JSON.stringify(Object.fromEntries(CHECKS.map((name) => [name, checked(name)]))));
      changed(id);
    });
    changed(id);
  }
}

// The ways of decoding to show: one or two.
export function decodings() {
  const chosen = document.querySelector('input[name=decode]:checked').value;
  return chosen === 'both' ? ['ar', 'loopspec'] : [chosen];
}

export function chosenDepths() {
  return $('depths').value.split(',').filter(Boolean).map(Number);
}

// The model's own defaults, in grey.
export function showDefaults(model, sampling) {
  for (const field of SAMPLING) {
    const value = sampling?.[field];
    if (value !== undefined) $(field).placeholder = String(Number(value.toPrecision(6)));
  }
  const before = $('depths').value;
  $('depths').replaceChildren(...model.depths.map((depths) => new Option(depths.join(', '), depths.join(','))));
  if (model.depths.some((depths) => depths.join(',') === before)) $('depths').value = before;
  $('depths-row').hidden = model.depths.length < 2;
  $('think-row').hidden = !model.canChoose;
  $('max_tokens').placeholder = model.chat ? 'to the end' : '512';
}

export function wantedTokens() {
  return $('max_tokens').value === '' ? undefined : Number($('max_tokens').value);
}

export function seed() {
  return $('seed').value === '' ? Math.floor(Math.random() * 2 ** 48) : Number($('seed').value);
}

// The part of a request that the prompt is made from.
export function promptBody(model, messages) {
  if (!model.chat) return { prompt: messages.map(({ content }) => content).join('') };
  const system = $('system').value.trim();
  const body = { messages: [...(system ? [{ role: 'system', content: system }] : []), ...messages] };
  if (model.canChoose) body.chat_template_kwargs = { enable_thinking: checked('think') };
  return body;
}

// The rest of it.
export function decodeBody(model, decode) {
  const body = { model: model.id, stream: true, token_details: true, trace: checked('watch'), decode, sampler: $('sampler').value };
  for (const field of SAMPLING) {
    if ($(field).value !== '') body[field] = Number($(field).value);
    else if (field === 'temperature' && $(field).placeholder !== '') body[field] = Number($(field).placeholder); // what is shown, not OpenAI's 1
  }
  if (decode === 'loopspec' && model.depths.length > 1) body.depths = chosenDepths();
  if (checked('probabilities')) Object.assign(body, model.chat ? { logprobs: true, top_logprobs: TOP } : { logprobs: TOP });
  if (model.chat) body.reasoning_format = 'none'; // the page tells thinking from answer itself: tokens keep their places
  return body;
}
