// The server as the reader sees it: the banner when it does not answer, the panel that asks for a key.
import { Connection } from './connection.js';
import { $ } from './dom.js';
import { storage } from './settings.js';

export class Server {
  // `onModel(model, tokenizer)`; `say(text)`: for screen readers.
  constructor({ onModel, say }) {
    this.say = say;
    this.stored = storage('sessionStorage'); // a key stays in its tab
    this.key = this.stored?.getItem('key') ?? '';
    this.connection = new Connection({ key: () => this.key, onModel, onState: (state, message) => this.show(state, message) });
    this.known = false; // a model has been shown
    $('banner-now').addEventListener('click', () => this.connection.retryNow());
    $('key-panel').addEventListener('submit', (event) => {
      event.preventDefault();
      this.useKey($('key').value.trim());
    });
    $('change-key').addEventListener('click', () => {
      $('key').value = '';
      this.useKey('');
    });
  }

  connect() {
    this.connection.connect();
  }

  useKey(key) {
    this.key = key;
    this.stored?.setItem('key', key);
    this.connection.connect();
  }

  // What a request met.
  failed(error) {
    this.connection.failed(error);
  }

  // Whether the server can be asked; if not, what is missing is brought to sight.
  ready() {
    if (this.connection.state === 'ready') return true;
    if (this.connection.state === 'key') $('key').focus();
    this.connection.retryNow();
    this.say($('banner-text').textContent || 'The server does not answer yet.');
    return false;
  }

  show(state, message) {
    this.known = this.known || state === 'ready';
    this.askForKey(state === 'key', message);
    $('change-key').hidden = state !== 'ready' || this.key === '';
    const down = state === 'silent' || state === 'loading';
    $('banner').hidden = !down;
    $('banner').dataset.state = state;
    if (down) {
      $('banner-text').textContent = message;
      if (!this.known) $('model').textContent = message;
      this.countDown();
    } else if (this.wasDown && state === 'ready') {
      this.say('The server answers again.');
    }
    this.wasDown = down || (this.wasDown && state !== 'ready');
  }

  askForKey(asking, message) {
    $('key-panel').hidden = !asking;
    $('key-error').textContent = asking ? message : '';
    $('key').setAttribute('aria-invalid', String(asking && message !== ''));
    if (!asking) return;
    document.body.classList.remove('settings-open'); // on a phone they would lie above it
    $('model').textContent = 'This server asks for a key.';
    $('key').focus();
    $('key').select();
  }

  countDown() {
    clearInterval(this.timer);
    const show = () => {
      const seconds = Math.ceil((this.connection.retryAt - Date.now()) / 1000);
      $('banner-wait').textContent = seconds > 0 ? `Trying again in ${seconds} s.` : 'Trying again …';
      if ($('banner').hidden) clearInterval(this.timer);
    };
    show();
    this.timer = setInterval(show, 500);
  }
}
