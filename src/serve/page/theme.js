// Light, dark, or as the system has it.
import { $, element } from './dom.js';
import { storage } from './settings.js';

const THEMES = { auto: ['◐', 'Auto'], light: ['○', 'Light'], dark: ['●', 'Dark'] };

// `redraw`: pictures have the colours of the theme.
export function wireTheme(redraw) {
  const kept = storage('localStorage');
  const names = Object.keys(THEMES);
  let now = names.includes(kept?.getItem('theme')) ? kept.getItem('theme') : 'auto';
  const set = (theme) => {
    now = theme;
    if (theme === 'auto') delete document.documentElement.dataset.theme;
    else document.documentElement.dataset.theme = theme;
    $('theme').replaceChildren(THEMES[theme][0], element('span', 'only-wide', ` ${THEMES[theme][1]}`));
    $('theme').setAttribute('aria-label', `Colours: ${theme === 'auto' ? 'as the system has them' : theme}`);
    kept?.setItem('theme', theme);
    redraw();
  };
  $('theme').addEventListener('click', () => set(names[(names.indexOf(now) + 1) % names.length]));
  matchMedia('(prefers-color-scheme: dark)').addEventListener('change', redraw);
  set(now);
}
