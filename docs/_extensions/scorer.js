// Scores of search results. Pages about khop's insides come after users' pages.
const behind = /^(design|architecture|life-of-a-batch|protocol|device-model|changelog|benchmarks)$/;
const users = /^(tutorials|how-to)\/|^(modes|features|faq)$/;

var Scorer = {
  score: (result) => {
    const page = result[0];
    if (behind.test(page)) return result[4] / 4;
    return users.test(page) ? result[4] * 2 : result[4];
  },
  objNameMatch: 11,
  objPartialMatch: 6,
  objPrio: { 0: 15, 1: 5, 2: -5 },
  objPrioDefault: 0,
  title: 15,
  partialTitle: 7,
  term: 5,
  partialTerm: 2,
};
