// What the user said: a bubble that can be copied, and edited and sent again.
import { button, copyButton, element } from './dom.js';

// `resend(text)`: what happens with the edited text; `busy()`: not now.
export function saidBubble(text, { resend, busy }) {
  const made = element('div', 'said');
  const bubble = element('p', '', text);
  bubble.dir = 'auto';
  const tools = element('span', 'tools');
  tools.append(copyButton(() => text), button('tool edit', 'Edit', () => {
    if (!busy()) edit(made, text, resend);
  }));
  made.append(bubble, tools);
  return made;
}

function edit(made, text, resend) {
  if (made.querySelector('textarea')) return;
  const before = [...made.children];
  const form = element('form', 'editing');
  const box = element('textarea');
  box.value = text;
  box.dir = 'auto';
  box.rows = Math.min(12, text.split('\n').length + 1);
  box.setAttribute('aria-label', 'Edit your message');
  const cancel = () => made.replaceChildren(...before);
  const send = element('button', 'primary', 'Send again');
  const buttons = element('span', 'buttons');
  buttons.append(element('small', '', 'What came after it goes.'), button('quiet', 'Cancel', cancel), send);
  form.append(box, buttons);
  form.addEventListener('submit', (event) => {
    event.preventDefault();
    if (box.value.trim()) resend(box.value.trim());
  });
  box.addEventListener('keydown', (event) => {
    if (event.key === 'Escape') {
      event.stopPropagation();
      cancel();
    } else if (event.key === 'Enter' && !event.shiftKey && !event.isComposing) {
      event.preventDefault();
      form.requestSubmit();
    }
  });
  made.replaceChildren(form);
  box.focus();
}
