// The page: a conversation with the model behind this server.
import { Answer } from './answer.js';
import { answerTokens, ContextMeter, measurePrompt } from './context.js';
import { branchOf, Conversations, newConversation, titleOf } from './conversations.js';
import { $, button, count, element } from './dom.js';
import { EXAMPLES } from './examples.js';
import { showExplanation, showLegend } from './explain.js';
import { Library } from './library.js';
import { saidBubble } from './said.js';
import { Server } from './server.js';
import { checked, chosenDepths, decodeBody, decodings, promptBody, rememberChecks, seed, showDefaults, storage, wantedTokens } from './settings.js';
import { getJson, postStream } from './stream.js';
import { wireTheme } from './theme.js';
import { withoutThinking } from './thinking.js';
import { Tooltip } from './tooltip.js';

const LEAST_ROOM = 256; // tokens for an answer, when old messages are left out to make room

const page = {
  model: null, // {id, recurrence, depths, context, chat, thinks, canChoose}
  conversation: newConversation(''),
  answers: [], // in sight
  running: null, // AbortController
  follow: true, // keep the end of the conversation in sight
  limit: undefined, // tokens of an answer, as far as the server has told
};
const conversations = new Conversations(storage('localStorage'));
const meter = new ContextMeter($('meter'));
const server = new Server({ onModel: showModel, say });

function say(text) {
  $('status').textContent = text;
}

// ---- The model ----

function showModel(model, tokenizer) {
  const template = tokenizer.chat_template ?? '';
  page.model = {
    id: model.id,
    recurrence: model.loopspec.recurrence,
    depths: model.loopspec.depths,
    context: model.max_model_len,
    chat: template !== '',
    thinks: template.includes('<think>'),
    canChoose: template.includes('enable_thinking'),
  };
  const name = model.id.split('/').pop();
  document.title = `${name} · loopspec`;
  $('model').textContent = `${name} · ${page.model.recurrence} recurrences · ${count(page.model.context, 'token')} of context`;
  showDefaults(page.model, model.loopspec.models_own_sampling ?? model.loopspec.sampling);
  $('prompt').placeholder = page.model.chat ? 'Write a message' : 'Begin a text, the model continues it';
  $('prompt-label').textContent = page.model.chat ? 'Your message' : 'The beginning of a text';
  page.conversation.model ||= model.id;
  showDepths();
  if (page.conversation.messages.length === 0) openAddress();
  measure();
}

function showDepths() {
  const facts = { depths: chosenDepths(), recurrence: page.model.recurrence };
  showLegend($('legend-keys'), facts);
  showExplanation($('explanation'), facts);
}

// ---- A request ----

// What the model is told of the conversation.
function sentMessages() {
  const { messages, skipped } = page.conversation;
  return messages.slice(skipped).map(({ role, content }) => ({ role, content: role === 'user' ? content : withoutThinking(content) }))
    .filter(({ content }) => content !== ''); // an answer may have failed at once
}

function showUse(tokens) {
  meter.show(tokens, page.model.context);
}

// Shows what the conversation takes; without one, nothing.
async function measure() {
  const { conversation } = page;
  if (!page.model || page.running) return;
  $('meter').hidden = conversation.messages.length === 0;
  if (conversation.messages.length === 0) return;
  try {
    const { count: tokens } = await measurePrompt(page.model, promptBody(page.model, sentMessages()), server.key);
    if (page.conversation === conversation && !page.running) showUse(tokens);
  } catch {
    // not worth a word: the next answer will say it
  }
}

// The ids of the conversation and of the answer so far: what a text that was cut goes on from.
async function continuedPrompt(answer, prompt) {
  const { messages, prompt: text, chat_template_kwargs: variables } = prompt;
  const asked = messages ? { messages, ...(variables && { chat_template_kwargs: variables }) } : { prompt: text };
  const [before, said] = await Promise.all([
    getJson('/tokenize', server.key, asked),
    getJson('/tokenize', server.key, { prompt: answer.text, add_special_tokens: false }),
  ]);
  return [...before.tokens, ...said.tokens];
}

// One answer. Asks again once, for fewer tokens, when the server has a limit of its own.
async function run(answer, { prompt, tokens, seed: number, signal, ids }) {
  const chat = page.model.chat && !ids;
  const path = chat ? '/v1/chat/completions' : '/v1/completions';
  const body = { ...(ids ? { prompt: ids } : prompt), ...decodeBody({ ...page.model, chat }, answer.decode), seed: number };
  answer.onDraw = () => {
    showUse(tokens.count + answer.tokens.list.length);
    followLog();
  };
  for (let again = false; ; again = true) {
    body.max_tokens = answerTokens({ wanted: wantedTokens(), room: tokens.room, limit: page.limit, chat: page.model.chat });
    try {
      for await (const event of postStream(path, body, { key: server.key, signal })) {
        answer.add(event);
      }
      answer.full = answer.reason === 'length' && body.max_tokens >= tokens.room;
      answer.finish('done');
      return;
    } catch (error) {
      const limit = error.param === 'max_tokens' ? Number((/at most (\d+)/).exec(error.message)?.[1]) : NaN;
      if (limit > 0 && !again) {
        page.limit = limit;
        continue;
      }
      fail(answer, error, signal);
      return;
    }
  }
}

function fail(answer, error, signal) {
  if (signal.aborted) answer.finish('stopped');
  else {
    server.failed(error);
    answer.finish('failed', error.message);
  }
}

function makeAnswers(ways, opened) {
  return ways.map((decode) => new Answer({
    decode, model: page.model, depths: decode === 'ar' ? [] : chosenDepths(), watch: checked('watch'), markdown: checked('markdown'), opened,
  }));
}

// Answers the conversation as it stands.
async function answer() {
  const { conversation } = page;
  const turn = element('div', decodings().length > 1 ? 'turn both' : 'turn');
  turn.dataset.index = conversation.messages.length;
  const answers = makeAnswers(decodings());
  turn.append(...answers.map((made) => made.element));
  page.answers = [...page.answers.filter((made) => made.element.isConnected), ...answers];
  $('log').append(turn);
  new ResizeObserver(() => followLog()).observe(turn); // pictures grow later than text
  followLog(true);
  page.running = new AbortController();
  setRunning(true);
  const inTurn = checked('in-turn');
  const { signal } = page.running;
  try {
    const { prompt, tokens } = await fittingPrompt();
    showUse(tokens.count);
    if (tokens.room < 1) overfull(answers, tokens);
    else await runAll(answers, { prompt, tokens, seed: seed(), signal }, inTurn);
  } catch (error) {
    for (const made of answers) fail(made, error, signal);
  }
  page.running = null;
  setRunning(false);
  if (page.conversation === conversation) conclude(turn, answers, inTurn); // no other has been opened meanwhile
}

async function runAll(answers, request, inTurn) {
  const work = answers.map((made) => async () => {
    if (request.signal.aborted) return made.finish('stopped');
    made.started = performance.now();
    made.opened = request.tokens.opened;
    return run(made, request);
  });
  // The same seed for both: with the coupled sampler the texts are then equal too.
  if (!inTurn) await Promise.all(work.map((one) => one()));
  else for (const one of work) await one();
}

// ---- A full context ----

function overfull(answers, tokens) {
  const alone = sentMessages().length < 2;
  const message = alone
    ? `Your message takes ${count(tokens.count, 'token')}, the model sees ${page.model.context.toLocaleString('en')} at most. Edit it to make it shorter.`
    : `The conversation takes ${count(tokens.count, 'token')}, the model sees ${page.model.context.toLocaleString('en')} at most.`;
  for (const made of answers) made.finish('failed', message);
  answers[answers.length - 1].full = !alone;
}

// The prompt of the conversation, without as many of its oldest messages as leave no room for an answer; `least`: tokens of room.
async function fittingPrompt(least = Math.min(LEAST_ROOM, page.model.context / 4)) {
  const { conversation } = page;
  const question = conversation.messages.length - 1;
  for (;;) {
    const prompt = promptBody(page.model, sentMessages());
    const tokens = await measurePrompt(page.model, prompt, server.key);
    let next = conversation.skipped + 1;
    while (next <= question && conversation.messages[next].role !== 'user') next += 1;
    if (tokens.room >= least || !page.model.chat || next > question) return { prompt, tokens };
    conversation.skipped = next;
    showSkipped();
  }
}

// Leaves out messages from the beginning on until an answer has more room than before, and answers the last question again.
function makeRoom() {
  dropLastAnswer();
  const { conversation } = page;
  let next = conversation.skipped + 1;
  while (next < conversation.messages.length && conversation.messages[next].role !== 'user') next += 1;
  if (next < conversation.messages.length) conversation.skipped = next;
  showSkipped();
  answer();
}

// Which messages the model does not see any more, and a line where those that it sees begin.
function showSkipped() {
  document.querySelector('#log > .left-out')?.remove();
  const first = document.querySelector(`#log > [data-index="${page.conversation.skipped}"]`);
  if (page.conversation.skipped > 0 && first) {
    first.before(element('p', 'left-out', 'The conversation is longer than what the model can see at once: it sees it from here on'));
  }
  for (const part of document.querySelectorAll('#log > [data-index]')) {
    const gone = Number(part.dataset.index) < page.conversation.skipped;
    part.classList.toggle('skipped', gone);
    part.title = gone ? 'Not sent to the model any more' : '';
  }
}

// ---- The end of an answer ----

function conclude(turn, answers, inTurn) {
  const last = answers[answers.length - 1];
  page.conversation.messages.push({ role: 'assistant', content: last.text, answers: answers.map((made) => made.save()) });
  keep();
  addFoot(turn, answers, inTurn);
  followLog();
  const words = { done: 'Answer complete', stopped: 'Stopped', failed: 'The answer failed' }[last.how];
  say(`${words}: ${count(last.tokens.list.length, 'token')}.`);
}

// What both gave, and buttons for what comes next.
function addFoot(turn, answers, inTurn) {
  for (const old of document.querySelectorAll('.retry, .make-room')) old.remove(); // only the last answer can be tried again
  const foot = element('p', 'foot');
  if (answers.length > 1 && answers.every((made) => made.how === 'done')) foot.append(element('span', 'verdict', verdict(answers, inTurn)));
  if (answers.some((made) => made.full)) {
    if (answers[0].how === 'done') foot.append(element('span', 'verdict', 'The context is full.'));
    foot.append(button('quiet make-room', 'Leave out the oldest messages and answer again', () => {
      if (!page.running) makeRoom();
    }));
  }
  const last = answers[answers.length - 1];
  if (last.how === 'stopped' || (last.how === 'done' && last.reason === 'length' && !last.full)) {
    foot.append(button('quiet continue', 'Continue', () => {
      if (!page.running && server.ready()) goOnFrom(turn, answers);
    }));
  }
  const branch = button('tool branch', 'Branch', () => {
    if (!page.running) branchFrom(Number(turn.dataset.index));
  });
  branch.title = 'Go on from this answer in a conversation of its own; this one stays as it is';
  foot.append(branch);
  foot.append(button('quiet retry', 'Retry', () => {
    if (page.running || !server.ready()) return;
    dropLastAnswer();
    answer();
  }));
  turn.append(foot);
}

// Goes on with an answer that was stopped or cut: where the conversation has more after it, in a branch, so that nothing is lost.
function goOnFrom(turn, answers) {
  const index = Number(turn.dataset.index);
  if (index === page.conversation.messages.length - 1) return goOn(turn, answers);
  branchFrom(index);
  return goOn(document.querySelector(`#log > [data-index="${index}"]`), page.answers.slice(-answers.length));
}

// Goes on with the last answer, which was stopped or cut.
async function goOn(turn, before) {
  const { conversation } = page;
  conversation.messages.pop();
  turn.querySelector('.foot')?.remove();
  const answers = before.map((old) => {
    const made = new Answer({
      decode: old.decode, model: page.model, depths: old.depths, watch: checked('watch'), markdown: checked('markdown'), opened: old.opened, tokens: old.tokens,
    });
    old.element.replaceWith(made.element);
    return made;
  });
  page.answers = [...page.answers.filter((made) => made.element.isConnected), ...answers];
  page.running = new AbortController();
  setRunning(true);
  const { signal } = page.running;
  const number = seed();
  for (const made of answers) {
    try {
      const prompt = promptBody(page.model, sentMessages());
      const ids = await continuedPrompt(made, prompt);
      const tokens = { count: ids.length, room: page.model.context - ids.length };
      if (tokens.room < 1) made.finish('done');
      else await run(made, { prompt, tokens, seed: number, signal, ids });
    } catch (error) {
      fail(made, error, signal);
    }
  }
  page.running = null;
  setRunning(false);
  if (page.conversation === conversation) conclude(turn, answers, true);
}

function branchFrom(index) {
  const branch = branchOf(page.conversation, index);
  if (checked('keep')) conversations.save(branch);
  show(branch);
  say('A branch of the conversation, which goes on from this answer.');
  $('prompt').focus();
}

function verdict([plain, ours], inTurn) {
  const ratio = plain.tokensPerSecond > 0 ? ours.tokensPerSecond / plain.tokensPerSecond : 0;
  const same = plain.text === ours.text ? 'The same text, token for token.' : 'Two samples of the same distribution.';
  return `${same} LoopSpec was ${ratio.toFixed(2)}× as fast${inTurn ? '.' : ', while both shared the engine.'}`;
}

function dropLastAnswer() {
  truncate(page.conversation.messages.length - 1);
}

// Forgets message `index` and all after it.
function truncate(index) {
  page.conversation.messages.length = index;
  page.conversation.skipped = Math.min(page.conversation.skipped, index);
  for (const part of document.querySelectorAll('#log > [data-index]')) {
    if (Number(part.dataset.index) >= index) part.remove();
  }
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

function addSaid(index) {
  const made = saidBubble(page.conversation.messages[index].content, {
    busy: () => Boolean(page.running),
    resend: (text) => {
      if (page.running || !server.ready()) return;
      truncate(index);
      ask(text);
    },
  });
  made.dataset.index = index;
  $('log').append(made);
}

function ask(text) {
  $('welcome').hidden = true;
  page.conversation.model = page.model.id;
  page.conversation.messages.push({ role: 'user', content: text });
  page.conversation.title = titleOf(page.conversation.messages);
  addSaid(page.conversation.messages.length - 1);
  openSettings(false);
  page.follow = true;
  keep();
  answer();
}

function send() {
  const text = $('prompt').value.trim();
  if (!text || page.running || !server.ready()) return;
  $('prompt').value = '';
  grow();
  ask(text);
}

function stop() {
  page.running?.abort();
}

function keep() {
  if (!checked('keep')) return;
  $('keep-note').hidden = conversations.save(page.conversation);
  showAddress();
}

// Every conversation that is kept has an address of its own, so that a reload, a bookmark and the browser's arrows find it.
function showAddress() {
  const kept = page.conversation.messages.length > 0 && checked('keep');
  const address = kept ? `#${page.conversation.id}` : '';
  if (location.hash === address) return;
  const entry = [null, '', `${location.pathname}${location.search}${address}`];
  if (location.hash === '') history.replaceState(...entry);
  else history.pushState(...entry);
}

// The conversation that the address names, if it is kept here.
function openAddress() {
  const id = location.hash.slice(1);
  if (id === page.conversation.id || (id === '' && page.conversation.messages.length === 0)) return;
  const found = id === '' ? newConversation(page.model.id) : conversations.load(id);
  if (found) show(found);
}

// Shows a conversation from its beginning.
function show(conversation) {
  stop();
  page.conversation = conversation;
  page.answers = [];
  for (const part of [...$('log').children]) {
    if (part.id !== 'welcome') part.remove();
  }
  const { messages } = conversation;
  $('welcome').hidden = messages.length > 0;
  messages.forEach(({ role, content, answers }, index) => {
    if (role === 'user') addSaid(index);
    else restoreTurn(index, answers?.length ? answers : [{ decode: 'ar', text: content }]);
  });
  if (messages[messages.length - 1]?.role === 'user') offerAnswer();
  showAddress();
  showSkipped();
  measure();
  page.follow = true;
  followLog(true);
}

// The page was left before the answer was there.
function offerAnswer() {
  const foot = element('p', 'foot');
  foot.dataset.index = page.conversation.messages.length;
  foot.append(element('span', 'note', 'This was not answered.'), button('quiet retry', 'Answer now', () => {
    if (page.running || !server.ready()) return;
    foot.remove();
    answer();
  }));
  $('log').append(foot);
}

function restoreTurn(index, saved) {
  const made = saved.map((one) => Answer.restore(one, { model: page.model, markdown: checked('markdown') }));
  const turn = element('div', made.length > 1 ? 'turn both' : 'turn');
  turn.dataset.index = index;
  turn.append(...made.map((one) => one.element));
  page.answers.push(...made);
  $('log').append(turn);
  addFoot(turn, made, true);
}

function newChat() {
  show(newConversation(page.model?.id ?? ''));
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

// Pictures have the colours of the theme.
function redraw() {
  for (const made of page.answers) made.pipeline?.request();
}

function wireConversation() {
  const library = new Library(conversations, {
    current: () => page.conversation,
    open: (id) => {
      const found = page.model && conversations.load(id);
      if (found) show(found);
    },
    removed: (id) => {
      if (id === undefined || id === page.conversation.id) newChat();
    },
  });
  $('show-library').addEventListener('click', () => library.show());
  $('new-chat').addEventListener('click', newChat);
  $('stop').addEventListener('click', stop);
  $('composer').addEventListener('submit', (event) => {
    event.preventDefault();
    send();
  });
  $('prompt').addEventListener('input', grow);
  $('prompt').addEventListener('keydown', (event) => {
    if (event.key !== 'Enter' || event.shiftKey || event.isComposing) return;
    event.preventDefault();
    send();
  });
  for (const type of ['wheel', 'touchmove', 'keydown']) {
    $('log').addEventListener(type, () => requestAnimationFrame(() => {
      const log = $('log');
      page.follow = log.scrollHeight - log.scrollTop - log.clientHeight < 60;
    }), { passive: true });
  }
  for (const example of EXAMPLES) {
    $('examples').append(button('', example, () => {
      if (page.running || !server.ready()) return;
      ask(example);
    }));
  }
}

function wireSettings() {
  $('settings').addEventListener('submit', (event) => event.preventDefault());
  $('show-settings').addEventListener('click', () => openSettings(!document.body.classList.contains('settings-open')));
  $('depths').addEventListener('change', showDepths);
  $('explain').addEventListener('click', () => {
    const open = $('explanation').hidden;
    $('explanation').hidden = !open;
    $('explain').setAttribute('aria-expanded', String(open));
  });
  for (const choice of document.querySelectorAll('input[name=decode]')) {
    choice.addEventListener('change', () => {
      $('in-turn-row').hidden = decodings().length < 2;
    });
  }
  rememberChecks((id) => {
    if (id === 'colour') document.body.classList.toggle('plain', !checked('colour'));
    if (id === 'code-origins') document.body.classList.toggle('code-origins', checked('code-origins'));
    if (id === 'markdown') for (const made of page.answers) made.setMarkdown(checked('markdown'));
    if (id === 'keep' && checked('keep') && page.conversation.messages.length > 0) keep();
  });
}

document.addEventListener('keydown', (event) => {
  if (event.key !== 'Escape') return;
  if (page.running) stop();
  else openSettings(false);
});
wireConversation();
wireSettings();
wireTheme(redraw);
new Tooltip($('log'));
for (const type of ['hashchange', 'popstate']) {
  window.addEventListener(type, () => {
    if (page.model) openAddress();
  });
}
server.connect();
