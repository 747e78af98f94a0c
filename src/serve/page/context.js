// How much of the model's context a conversation takes, and what room that leaves for an answer.
import { count, element } from './dom.js';
import { getJson } from './stream.js';

const COMPLETION = 512; // tokens, where a text has no end of its own

// Tokens to ask for: what is wanted, as far as there is room; undefined for all of it. `limit`: what the server said is its most.
export function answerTokens({ wanted, room, limit = Infinity, chat }) {
  const most = Math.min(room, limit);
  return Math.max(1, Math.min(wanted ?? (chat ? most : COMPLETION), most));
}

// The prompt as the server counts it: {count, room, opened: it ends in <think>}.
export async function measurePrompt(model, body, key) {
  const { messages, prompt, chat_template_kwargs: variables } = body;
  const asked = messages ? { messages } : { prompt };
  if (variables) asked.chat_template_kwargs = variables;
  if (model.thinks) asked.return_token_strs = true;
  const answer = await getJson('/tokenize', key, asked);
  const end = (answer.token_strs ?? []).slice(-12).join('').trimEnd();
  return { count: answer.count, room: model.context - answer.count, opened: end.endsWith('<think>') };
}

export class ContextMeter {
  constructor(box) {
    this.box = box;
    this.bar = element('span', 'fill');
    const track = element('span', 'track');
    track.append(this.bar);
    this.label = element('span', 'amount');
    box.append(track, this.label);
    box.setAttribute('role', 'meter');
    box.setAttribute('aria-label', 'Context in use');
  }

  show(used, context) {
    this.box.hidden = !context;
    const share = context ? Math.min(1, used / context) : 0;
    this.bar.style.width = `${(100 * share).toFixed(1)}%`;
    this.box.dataset.level = share > 0.95 ? 'full' : share > 0.75 ? 'high' : '';
    this.label.textContent = `${used.toLocaleString('en')} of ${count(context, 'token')}`;
    this.box.title = `The conversation takes ${Math.round(100 * share)} % of what the model can see at once.`;
    this.box.setAttribute('aria-valuemin', 0);
    this.box.setAttribute('aria-valuemax', context);
    this.box.setAttribute('aria-valuenow', used);
    this.box.setAttribute('aria-valuetext', this.label.textContent);
  }
}
