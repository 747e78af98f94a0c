// Colours for code: comments, strings, numbers and the words that languages have in common with each other. One line at a time, so
// that a line that is complete keeps its colours while the next one comes.

const WORDS = {
  c: 'auto break case catch class const constexpr continue default delete do else enum extern false final float for friend goto if inline int long '
    + 'namespace new noexcept nullptr operator private protected public return short signed sizeof static struct switch template this throw true try '
    + 'typedef typename union unsigned using virtual void volatile while bool char double',
  js: 'async await break case catch class const continue debugger default delete do else export extends false finally for from function get if import in '
    + 'instanceof interface let new null of return set static super switch this throw true try type typeof undefined var void while yield',
  python: 'False None True and as assert async await break class continue def del elif else except finally for from global if import in is lambda '
    + 'match nonlocal not or pass raise return self try while with yield',
  rust: 'as async await break const continue crate dyn else enum extern false fn for if impl in let loop match mod move mut pub ref return self Self '
    + 'static struct super trait true type unsafe use where while',
  go: 'break case chan const continue default defer else fallthrough false for func go goto if import interface map nil package range return select '
    + 'struct switch true type var',
  sh: 'case do done elif else esac exit export fi for function if in local return set then until while',
  sql: 'and as asc between by case create delete desc distinct drop else end exists from group having in inner insert into is join left like limit not '
    + 'null on or order outer primary right select set table then union update values view when where',
  data: 'true false null',
};
const ALIASES = {
  'c++': 'c', cpp: 'c', cc: 'c', h: 'c', cuda: 'c', java: 'c', cs: 'c', kotlin: 'c', swift: 'c', javascript: 'js', ts: 'js', typescript: 'js', jsx: 'js', tsx: 'js',
  py: 'python', python3: 'python', rs: 'rust', golang: 'go', bash: 'sh', shell: 'sh', zsh: 'sh', console: 'sh', json: 'data', yaml: 'data', yml: 'data',
  toml: 'data', ini: 'data',
};
const HASH = new Set(['python', 'sh', 'data']); // where # begins a comment
const SETS = new Map(Object.entries(WORDS).map(([name, words]) => [name, new Set(words.split(' '))]));

export function familyOf(language) {
  const name = language.toLowerCase();
  const family = ALIASES[name] ?? name;
  return SETS.has(family) ? family : '';
}

// Pieces of one line that have a colour, in order: {start, end, kind: comment | string | number | word}. Nothing for a language that
// is not known.
export function highlight(line, family) {
  if (!family) return [];
  const words = SETS.get(family);
  const comment = HASH.has(family) ? '#' : family === 'sql' ? '--' : '//';
  const pieces = [];
  for (let at = 0; at < line.length;) {
    const rest = line.slice(at);
    if (rest.startsWith(comment) || (comment === '//' && rest.startsWith('/*'))) {
      const close = rest.startsWith('/*') ? rest.indexOf('*/', 2) : -1;
      const end = close < 0 ? line.length : at + close + 2;
      pieces.push({ start: at, end, kind: 'comment' });
      at = end;
      continue;
    }
    const string = (/^(?:"(?:[^"\\]|\\.)*"?|'(?:[^'\\]|\\.)*'?|`(?:[^`\\]|\\.)*`?)/).exec(rest);
    const number = (/^\d[\w.]*/).exec(rest);
    const word = (/^[\p{L}_$][\p{L}\p{N}_$]*/u).exec(rest);
    const match = string ?? number ?? word;
    if (!match) {
      at += 1;
      continue;
    }
    const end = at + match[0].length;
    if (string) pieces.push({ start: at, end, kind: 'string' });
    else if (number) pieces.push({ start: at, end, kind: 'number' });
    else if (words.has(family === 'sql' ? match[0].toLowerCase() : match[0])) pieces.push({ start: at, end, kind: 'word' });
    at = end;
  }
  return pieces;
}
