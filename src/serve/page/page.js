// The page: a conversation with the model behind this server.
import { Answer } from './answer.js';
import { ApiError, getJson, postStream } from './stream.js';

const $ = (id) => document.getElementById(id);
const SAMPLING = ['temperature', 'top_p', 'top_k', 'min_p', 'repetition_penalty'];
const EXAMPLES = [
  'Tell me a story about a cat and a boat.',
  'Tom has 3 apples. He buys 5 more and eats 2. How many apples does Tom have?',
  'Write about a rainy day.',
];
const THEMES = { auto: '◐ Auto', light: '○ Light', dark: '● Dark' };

const page = {
  model: null, // {id, recurrence, depths, chat}
  messages: [], // of the conversation so far
  running: null, // AbortController
  follow: true, // keep the end of the conversation in sight
};

function say(text) {
  $('status').textContent = text;
}

// ---- The model ----

function key() {
  return $('key').value;
}

async function connect() {
  for (;;) {
    try {
      const [models, tokenizer] = await Promise.all([getJson('/v1/models', key()), getJson('/tokenizer_info', key())]);
      return showModel(models.data[0], tokenizer);
    } catch (error) {
      if (error instanceof ApiError && error.status === 401) return askForKey();
      $('model').textContent = error instanceof ApiError ? error.message : 'The server cannot be reached.';
      await new Promise((resolve) => { setTimeout(resolve, 1000); });
    }
  }
}

function askForKey() {
  $('model').textContent = 'This server asks for a key.';
  $('key-row').hidden = false;
  openSettings(true);
  $('key').focus();
}

function showModel(model, tokenizer) {
  page.model = {
    id: model.id,
    recurrence: model.loopspec.recurrence,
    depths: model.loopspec.depths,
    chat: Boolean(tokenizer.chat_template),
  };
  const name = model.id.split('/').pop();
  document.title = `${name} · loopspec`;
  $('model').textContent = `${name} · ${page.model.recurrence} recurrences · ${model.max_model_len} tokens of context`;
  for (const field of SAMPLING) {
    const value = model.loopspec.sampling?.[field];
    if (value !== undefined) $(field).placeholder = String(Number(value.toPrecision(6)));
  }
  $('depths').replaceChildren(...page.model.depths.map((depths) => new Option(depths.join(', '), depths.join(','))));
  $('depths-row').hidden = page.model.depths.length < 2;
  if (!page.model.chat) {
    $('prompt').placeholder = 'Begin a text, the model continues it';
    $('prompt-label').textContent = 'The beginning of a text';
  }
  showDepths();
}

function chosenDepths() {
  return $('depths').value.split(',').filter(Boolean).map(Number);
}

function showDepths() {
  const depths = chosenDepths();
  for (const note of document.querySelectorAll('[data-depth]')) {
    const depth = depths[Number(note.dataset.depth)];
    note.textContent = depth ? `at depth ${depth}` : '';
    note.closest('.key').hidden = !depth;
  }
}

// ---- A request ----

function decodings() {
  const chosen = document.querySelector('input[name=decode]:checked').value;
  return chosen === 'both' ? ['ar', 'loopspec'] : [chosen];
}

function requestBody(decode, seed) {
  const body = {
    model: page.model.id, stream: true, token_details: true, trace: $('watch').checked, decode, seed,
    sampler: $('sampler').value,
  };
  for (const field of SAMPLING) {
    if ($(field).value !== '') body[field] = Number($(field).value);
  }
  if ($('max_tokens').value !== '') body.max_tokens = Number($('max_tokens').value);
  if (decode === 'loopspec' && page.model.depths.length > 1) body.depths = chosenDepths();
  if (page.model.chat) {
    const system = $('system').value.trim();
    body.messages = [...(system ? [{ role: 'system', content: system }] : []), ...page.messages];
  } else {
    body.prompt = page.messages.map((message) => message.content).join('');
  }
  return body;
}

async function run(answer, decode, seed, signal) {
  const path = page.model.chat ? '/v1/chat/completions' : '/v1/completions';
  try {
    for await (const event of postStream(path, requestBody(decode, seed), { key: key(), signal })) {
      answer.add(event);
      followLog();
    }
    answer.finish('done');
  } catch (error) {
    if (signal.aborted) answer.finish('stopped');
    else answer.finish('failed', error.message);
  }
}

// Answers the conversation as it stands.
async function answer() {
  const ways = decodings();
  // The same seed for both: with the coupled sampler the texts are then equal too.
  const seed = $('seed').value === '' ? Math.floor(Math.random() * 2 ** 48) : Number($('seed').value);
  const turn = document.createElement('div');
  turn.className = ways.length > 1 ? 'turn both' : 'turn';
  const answers = ways.map((decode) => new Answer({
    title: decode === 'ar' ? 'Autoregressive' : 'LoopSpec',
    model: page.model,
    depths: decode === 'ar' ? [] : chosenDepths(),
    watch: $('watch').checked,
  }));
  turn.append(...answers.map((made) => made.element));
  $('log').append(turn);
  new ResizeObserver(() => followLog()).observe(turn); // pictures grow later than text
  followLog(true);

  page.running = new AbortController();
  setRunning(true);
  const inTurn = $('in-turn').checked;
  const { signal } = page.running;
  const work = answers.map((made, i) => async () => {
    made.started = performance.now();
    await run(made, ways[i], seed, signal);
  });
  if (inTurn) {
    for (const one of work) await one();
  } else {
    await Promise.all(work.map((one) => one()));
  }
  page.running = null;
  setRunning(false);
  conclude(turn, answers, inTurn);
}

// What both gave, and a button to try again.
function conclude(turn, answers, inTurn) {
  const last = answers[answers.length - 1];
  page.messages.push({ role: 'assistant', content: last.text });
  const foot = document.createElement('p');
  foot.className = 'foot';
  if (answers.length > 1 && answers.every((made) => made.how === 'done')) {
    const [plain, ours] = answers;
    const ratio = plain.tokensPerSecond > 0 ? ours.tokensPerSecond / plain.tokensPerSecond : 0;
    const same = plain.text === ours.text ? 'The same text, token for token.' : 'Two samples of the same distribution.';
    const verdict = document.createElement('span');
    verdict.className = 'verdict';
    verdict.textContent = `${same} LoopSpec was ${ratio.toFixed(2)}× as fast${inTurn ? '.' : ', while both shared the engine.'}`;
    foot.append(verdict);
  }
  const retry = document.createElement('button');
  retry.type = 'button';
  retry.className = 'quiet retry';
  retry.textContent = 'Retry';
  retry.addEventListener('click', () => {
    if (page.running) return;
    page.messages.pop();
    turn.remove();
    answer();
  });
  for (const old of document.querySelectorAll('.retry')) old.remove(); // only the last answer can be tried again
  foot.append(retry);
  turn.append(foot);
  followLog();
  const words = { done: 'Answer complete', stopped: 'Stopped', failed: 'The answer failed' }[last.how];
  say(`${words}: ${last.tokens} tokens.`);
}

// ---- The conversation ----

function followLog(force) {
  const log = $('log');
  if (page.follow || force) log.scrollTop = log.scrollHeight;
}

function setRunning(running) {
  $('send').hidden = running;
  $('stop').hidden = !running;
  $('log').setAttribute('aria-busy', String(running));
  if (running) say('Answering.');
  if (!running && document.activeElement === document.body) $('prompt').focus();
}

function send() {
  const text = $('prompt').value.trim();
  if (!text || page.running || !page.model) return;
  $('welcome').hidden = true;
  $('prompt').value = '';
  grow();
  page.messages.push({ role: 'user', content: text });
  const said = document.createElement('div');
  said.className = 'said';
  const bubble = document.createElement('p');
  bubble.textContent = text;
  said.append(bubble);
  $('log').append(said);
  openSettings(false);
  page.follow = true;
  answer();
}

function stop() {
  page.running?.abort();
}

function newChat() {
  stop();
  page.messages = [];
  for (const part of [...$('log').children]) {
    if (part.id !== 'welcome') part.remove();
  }
  $('welcome').hidden = false;
  $('prompt').focus();
}

// ---- Controls ----

function grow() {
  const box = $('prompt');
  box.style.height = 'auto';
  box.style.height = `${Math.min(box.scrollHeight, 180)}px`;
}

function openSettings(open) {
  document.body.classList.toggle('settings-open', open);
  $('show-settings').setAttribute('aria-expanded', String(open));
}

function setTheme(theme) {
  if (theme === 'auto') delete document.documentElement.dataset.theme;
  else document.documentElement.dataset.theme = theme;
  $('theme').textContent = THEMES[theme];
  $('theme').setAttribute('aria-label', `Colours: ${theme === 'auto' ? 'as the system has them' : theme}`);
  localStorage.setItem('theme', theme);
  window.dispatchEvent(new Event('resize'));
}

function wire() {
  $('composer').addEventListener('submit', (event) => {
    event.preventDefault();
    send();
  });
  $('settings').addEventListener('submit', (event) => event.preventDefault());
  $('prompt').addEventListener('input', grow);
  for (const type of ['wheel', 'touchmove', 'keydown']) {
    $('log').addEventListener(type, () => requestAnimationFrame(() => {
      const log = $('log');
      page.follow = log.scrollHeight - log.scrollTop - log.clientHeight < 60;
    }), { passive: true });
  }
  $('prompt').addEventListener('keydown', (event) => {
    if (event.key !== 'Enter' || event.shiftKey || event.isComposing) return;
    event.preventDefault();
    send();
  });
  document.addEventListener('keydown', (event) => {
    if (event.key !== 'Escape') return;
    if (page.running) stop();
    else openSettings(false);
  });
  $('stop').addEventListener('click', stop);
  $('new-chat').addEventListener('click', newChat);
  $('show-settings').addEventListener('click', () => openSettings(!document.body.classList.contains('settings-open')));
  $('theme').addEventListener('click', () => {
    const names = Object.keys(THEMES);
    const now = localStorage.getItem('theme') ?? 'auto';
    setTheme(names[(names.indexOf(now) + 1) % names.length]);
  });
  $('depths').addEventListener('change', showDepths);
  $('key').addEventListener('change', () => {
    sessionStorage.setItem('key', key());
    connect();
  });
  $('colour').addEventListener('change', () => document.body.classList.toggle('plain', !$('colour').checked));
  for (const choice of document.querySelectorAll('input[name=decode]')) {
    choice.addEventListener('change', () => {
      $('in-turn-row').hidden = decodings().length < 2;
    });
  }
  for (const example of EXAMPLES) {
    const button = document.createElement('button');
    button.type = 'button';
    button.textContent = example;
    button.addEventListener('click', () => {
      $('prompt').value = example;
      send();
    });
    $('examples').append(button);
  }
}

wire();
setTheme(localStorage.getItem('theme') in THEMES ? localStorage.getItem('theme') : 'auto');
$('key').value = sessionStorage.getItem('key') ?? '';
if (key()) $('key-row').hidden = false;
connect();
