// Knows whether the server is there, and comes back to it by itself.
import { alive, ApiError, getJson } from './stream.js';

const SOONEST = 1000;
const LATEST = 15_000;
const WATCH = 10_000;

export class Connection {
  // `key()`: the key in use; `onModel(model, tokenizer)`; `onState(state, message)`: connecting, ready, silent, loading or key.
  constructor({ key, onModel, onState }) {
    this.key = key;
    this.onModel = onModel;
    this.onState = onState;
    this.state = 'connecting';
    this.wait = SOONEST;
    this.timer = null;
    this.retryAt = 0;
    setInterval(() => this.look(), WATCH);
    addEventListener('online', () => this.retryNow());
    document.addEventListener('visibilitychange', () => {
      if (document.visibilityState === 'visible') this.retryNow();
    });
  }

  set(state, message = '') {
    this.state = state;
    this.onState(state, message);
  }

  async connect() {
    clearTimeout(this.timer);
    if (this.connecting) return;
    this.connecting = true;
    try {
      const key = this.key();
      const [models, tokenizer] = await Promise.all([getJson('/v1/models', key), getJson('/tokenizer_info', key)]);
      this.wait = SOONEST;
      this.onModel(models.data[0], tokenizer);
      this.set('ready');
    } catch (error) {
      this.failed(error);
    } finally {
      this.connecting = false;
    }
  }

  // What a request met. True when it was the connection's fault.
  failed(error) {
    if (error instanceof ApiError && error.status === 401) {
      this.set('key', this.key() ? 'The server does not accept this key.' : '');
      return true;
    }
    const loading = error instanceof ApiError && error.status === 503;
    if (error instanceof ApiError && !loading && this.state === 'ready') return false;
    this.later(loading ? SOONEST : this.wait);
    this.wait = Math.min(LATEST, this.wait * 2);
    this.set(loading ? 'loading' : 'silent', error.message);
    return true;
  }

  later(wait) {
    clearTimeout(this.timer);
    this.retryAt = Date.now() + wait;
    this.timer = setTimeout(() => this.connect(), wait);
  }

  retryNow() {
    if (this.state !== 'silent' && this.state !== 'loading') return;
    this.wait = SOONEST;
    this.connect();
  }

  // While nothing is asked, so that a server that went is known before the next question.
  async look() {
    if (this.state !== 'ready' || document.visibilityState !== 'visible') return;
    if (!await alive() && this.state === 'ready') this.failed(new Error('The server does not answer.'));
  }
}
