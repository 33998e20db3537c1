#!/usr/bin/env bash
# A preprocessor of mdBook: reads the book as JSON, and prints it with changed pages.
#
# - Links to files outside of docs/ lead to the repository.
# - README.md is index.md in the book, and links to it follow.
# - Diagrams become elements that diagrams.js draws.
set -euo pipefail

# mdBook first asks whether the preprocessor supports a renderer.
[ "${1:-}" != supports ] || exit 0

exec jq --compact-output '
  (.[0].config.output.html["git-repository-url"] + "/blob/main/") as $repository
  | def page:
      ("../" * ((.source_path // "" | split("/") | length))) as $outside
      | .content |= (
          gsub("(?<start>\\]\\(\\s*|(?m)^\\[[^]]+\\]: )" + ($outside | gsub("\\."; "\\.")); "\(.start)\($repository)")
          | gsub("\\]\\((?<folder>(\\.\\./|[a-z-]+/)*)README\\.md"; "](\(.folder)index.md")
          | gsub("```mermaid\n(?<diagram>[^`]*)```"; "<pre class=\"mermaid\">\n\(.diagram | @html)</pre>")
        );
  .[1]
  | walk(if type == "object" and has("content") and has("source_path") then page else . end)
'
