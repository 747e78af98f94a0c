// Questions to begin with. tests/serve/page_client.py asks them all: the demo models answer each rightly.

export const EXAMPLES = [
  'Theo has 10 stones. Then his number of stones doubles. He shares them equally among 4 children. How many stones does each child get?',
  'Sara has 54 cookies. Sadly, she loses 4 cookies. Then she gets 5 bags with 9 cookies in each. How many cookies does Sara have now?',
  'Lucy has 9 boxes with 7 toy cars in each. She puts a third of them away. She sells 38 of them. She sells all of them for 2 dollars each. How many dollars does she get?',
  'Tell me a story about a dog who found a ball.',
];
