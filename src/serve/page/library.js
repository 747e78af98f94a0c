// The dialog with the conversations that are kept.
import { fileName, toJson, toMarkdown } from './conversations.js';
import { $, button, count, download, element } from './dom.js';

export class Library {
  // `current()`: the conversation in sight; `open(id)`, `removed(id)`: what the page does then; id undefined: all are gone.
  constructor(conversations, { current, open, removed }) {
    this.conversations = conversations;
    this.current = current;
    this.open = open;
    this.removed = removed;
    this.dialog = $('library');
    $('library-close').addEventListener('click', () => this.dialog.close());
    $('export-markdown').addEventListener('click', () => this.save(this.current(), 'md'));
    $('export-json').addEventListener('click', () => this.save(this.current(), 'json'));
    $('export-all').addEventListener('click', () => download('conversations.json', 'application/json', toJson(this.conversations.list())));
    $('delete-all').addEventListener('click', () => this.deleteAll());
    this.dialog.addEventListener('click', (event) => {
      if (event.target === this.dialog) this.dialog.close(); // beside it
    });
  }

  save(conversation, ending) {
    const text = ending === 'md' ? toMarkdown(conversation) : toJson([conversation]);
    download(fileName(conversation, ending), ending === 'md' ? 'text/markdown' : 'application/json', text);
  }

  show() {
    this.fill();
    this.dialog.showModal();
  }

  fill() {
    const kept = this.conversations.list();
    const empty = this.current().messages.length === 0;
    for (const id of ['export-markdown', 'export-json']) $(id).disabled = empty;
    for (const id of ['export-all', 'delete-all']) $(id).disabled = kept.length === 0;
    $('delete-all').textContent = 'Delete all';
    $('library-empty').hidden = kept.length > 0;
    $('library-list').replaceChildren(...kept.map((conversation) => this.row(conversation)));
  }

  row(conversation) {
    const row = element('li');
    const name = button('name', '', () => {
      this.dialog.close();
      this.open(conversation.id);
    });
    const title = element('span', 'title', conversation.title || 'Untitled');
    title.dir = 'auto';
    const when = new Date(conversation.updated).toLocaleString([], { dateStyle: 'medium', timeStyle: 'short' });
    name.append(title, element('small', '', `${when} · ${count(conversation.messages.length, 'message')} · ${conversation.model.split('/').pop()}`));
    if (conversation.id === this.current().id) name.setAttribute('aria-current', 'true');
    const remove = button('quiet', 'Delete', () => {
      this.conversations.remove(conversation.id);
      this.removed(conversation.id);
      this.fill();
    });
    remove.setAttribute('aria-label', `Delete ${conversation.title}`);
    row.append(name, remove);
    return row;
  }

  // Asks once, in the button itself.
  deleteAll() {
    const confirm = $('delete-all');
    if (confirm.textContent === 'Delete all') {
      confirm.textContent = 'Really delete all?';
      return;
    }
    this.conversations.clear();
    this.removed(undefined);
    this.fill();
  }
}
