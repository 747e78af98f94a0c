// Conversations kept in this browser, and their export. Every conversation is an entry of its own, so that two tabs do not
// overwrite each other's; the oldest go when there are too many or they are too long together.
import { withoutThinking } from './thinking.js';

const PREFIX = 'loopspec.conversation.';
export const LIMITS = { conversations: 200, characters: 2_000_000 };

// {id, title, model, created, updated, skipped, messages: [{role: user | assistant, content, answers?}]}; `skipped`: how many of
// the first messages are not sent any more; answers: see Answer.save.
export function newConversation(model) {
  const now = Date.now();
  const id = `${now.toString(36)}${Math.floor(Math.random() * 2 ** 40).toString(36)}`;
  return { id, title: '', model, created: now, updated: now, skipped: 0, messages: [] };
}

// A conversation of its own with the messages up to `index`, that one included.
export function branchOf(conversation, index) {
  const messages = structuredClone(conversation.messages.slice(0, index + 1));
  return { ...newConversation(conversation.model), title: titleOf(messages), skipped: Math.min(conversation.skipped, index), messages };
}

export function titleOf(messages) {
  const first = messages.find(({ role }) => role === 'user')?.content ?? '';
  const line = first.trim().split('\n')[0];
  return line.length > 80 ? `${line.slice(0, 79)}…` : line;
}

export class Conversations {
  // `storage`: localStorage, or what behaves like it; null where the browser allows none.
  constructor(storage, limits = LIMITS) {
    this.storage = storage;
    this.limits = limits;
  }

  // Those that are kept, the latest first.
  list() {
    return this.keys().map((key) => this.read(key)).filter(Boolean).sort((a, b) => b.updated - a.updated);
  }

  load(id) {
    return this.read(PREFIX + id);
  }

  // False when it could not be kept.
  save(conversation) {
    if (!this.storage) return false;
    const kept = { ...conversation, updated: Date.now(), title: titleOf(conversation.messages) };
    let text = JSON.stringify(kept);
    if (text.length > this.limits.characters / 2) text = JSON.stringify({ ...kept, messages: kept.messages.map(withoutTokens) });
    if (text.length > this.limits.characters) return false;
    const others = this.sizes().filter(({ key }) => key !== PREFIX + kept.id).sort((a, b) => a.updated - b.updated);
    let total = others.reduce((sum, { length }) => sum + length, text.length);
    while (others.length > 0 && (total > this.limits.characters || others.length >= this.limits.conversations)) {
      const oldest = others.shift();
      total -= oldest.length;
      this.storage.removeItem(oldest.key);
    }
    // Other pages of this origin may fill the storage too.
    for (;;) {
      try {
        this.storage.setItem(PREFIX + kept.id, text);
        return true;
      } catch {
        if (others.length === 0) return false;
        this.storage.removeItem(others.shift().key);
      }
    }
  }

  remove(id) {
    this.storage?.removeItem(PREFIX + id);
  }

  clear() {
    for (const key of this.keys()) this.storage.removeItem(key);
  }

  keys() {
    const keys = [];
    for (let i = 0; i < (this.storage?.length ?? 0); ++i) {
      const key = this.storage.key(i);
      if (key.startsWith(PREFIX)) keys.push(key);
    }
    return keys;
  }

  sizes() {
    return this.keys().map((key) => ({ key, length: this.storage.getItem(key).length, updated: this.read(key)?.updated ?? 0 }));
  }

  read(key) {
    try {
      return sound(JSON.parse(this.storage.getItem(key)));
    } catch {
      return null;
    }
  }
}

// What is stored may be of another version, or of somebody who tried things: taken only in the form above.
function sound(given) {
  if (typeof given?.id !== 'string' || !Array.isArray(given.messages)) return null;
  const messages = given.messages.filter(({ role, content }) => (role === 'user' || role === 'assistant') && typeof content === 'string');
  for (const message of messages) {
    const answers = Array.isArray(message.answers) ? message.answers : [];
    message.answers = answers.filter((answer) => typeof answer?.text === 'string').map((answer) => (
      { ...answer, depths: Array.isArray(answer.depths) ? answer.depths.map(Number) : [] }));
  }
  return {
    id: given.id, title: titleOf(messages), model: String(given.model ?? ''), created: Number(given.created) || 0,
    updated: Number(given.updated) || 0, skipped: Math.min(Number(given.skipped) || 0, messages.length), messages,
  };
}

function withoutTokens(message) {
  if (!message.answers) return message;
  return { ...message, answers: message.answers.map((answer) => ({ ...answer, tokens: [] })) };
}

// ---- Export ----

export function toJson(conversations) {
  return `${JSON.stringify({ format: 'loopspec-conversations', version: 1, conversations }, null, 1)}\n`;
}

export function toMarkdown({ title, model, created, messages }) {
  const parts = [`# ${title || 'Conversation'}`, `${model}, ${new Date(created).toISOString().slice(0, 16).replace('T', ' ')} UTC`];
  for (const { role, content } of messages) {
    parts.push(role === 'user' ? '## You' : '## Model', role === 'user' ? content : withoutThinking(content));
  }
  return `${parts.join('\n\n')}\n`;
}

export function fileName({ title, created }, ending) {
  const words = title.toLowerCase().replace(/[^\p{L}\p{N}]+/gu, '-').replace(/^-|-$/g, '').slice(0, 40);
  return `${new Date(created).toISOString().slice(0, 10)}-${words || 'conversation'}.${ending}`;
}
