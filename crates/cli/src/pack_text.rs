//! Messages about packs of kernels.

/// Items of the library that its messages name, and the commands for them; longer ones first.
const COMMANDS: [(&str, &str); 6] = [
    ("Contents::build with a key", "`ruvllm pack build --key FILE`"),
    ("Contents::build", "`ruvllm pack build`"),
    ("Contents::sign", "`ruvllm pack sign`"),
    ("Store::list", "`ruvllm pack list`"),
    ("Store::rollback", "`ruvllm pack rollback`"),
    ("Store::prune", "`ruvllm pack prune`"),
];

/// A message of the library with the program's commands.
pub(crate) fn in_commands(line: &str) -> String {
    COMMANDS.iter().fold(line.to_owned(), |line, (item, command)| line.replace(item, command))
}
