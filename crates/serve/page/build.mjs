// Bundles the page: build.mjs PACKAGES OUTPUT NOTICE. PACKAGES holds node_modules. scripts/build-page.sh calls this.
import { copyFile, mkdir, readFile, readdir, rm, writeFile } from "node:fs/promises";
import { createRequire } from "node:module";
import { join, resolve } from "node:path";

const [packages, output, notice] = process.argv.slice(2).map((path) => resolve(path));
const modules = join(packages, "node_modules");
const { build } = createRequire(join(packages, "package.json"))("esbuild");
const source = join(import.meta.dirname, "src");

// Browsers of today read woff2, so the other forms of each font stay out.
const fonts = {
  name: "fonts",
  setup: ({ onLoad }) =>
    onLoad({ filter: /katex\.min\.css$/ }, async ({ path }) => {
      const contents = (await readFile(path, "utf8")).replaceAll(/,url\([^)]*\.(?:woff|ttf)\) format\("[a-z]+"\)/g, "");
      return { contents, loader: "css" };
    }),
};

await rm(output, { recursive: true, force: true });
await mkdir(output, { recursive: true });
const { metafile } = await build({
  entryPoints: { app: join(source, "main.tsx"), style: join(source, "style/app.css"), worklet: join(source, "worklet.ts") },
  outdir: output,
  bundle: true,
  splitting: true,
  format: "esm",
  minify: true,
  target: ["chrome123", "firefox121", "safari17.5"],
  jsx: "automatic",
  jsxImportSource: "preact",
  nodePaths: [modules],
  loader: { ".woff2": "file" },
  assetNames: "[name]",
  chunkNames: "[name]",
  legalComments: "none",
  metafile: true,
  plugins: [fonts],
  absWorkingDir: packages,
});
for (const name of ["index.html", "icon.svg"]) await copyFile(join(source, name), join(output, name));

/** The packages whose files are in the bundle. */
function bundled() {
  const names = Object.keys(metafile.inputs).map((path) => /node_modules\/((?:@[^/]+\/)?[^/]+)/.exec(path)?.[1]);
  return [...new Set(names.filter(Boolean))].sort();
}

async function license(name) {
  const folder = join(modules, name);
  const { version, license } = JSON.parse(await readFile(join(folder, "package.json"), "utf8"));
  const file = (await readdir(folder)).find((entry) => /^licen[cs]e/i.test(entry));
  const text = file ? (await readFile(join(folder, file), "utf8")).replaceAll("\r\n", "\n").trim() : "";
  if (!text) throw new Error(`${name} has no text of its license`);
  return `${name} ${version} (${license})\n\n${text}\n`;
}

const texts = await Promise.all(bundled().map(license));
const head = "The chat page of Flambeau contains the packages below, each under its license.\n";
await writeFile(notice, [head, ...texts].join(`\n${"-".repeat(78)}\n\n`));
