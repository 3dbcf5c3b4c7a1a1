//! Entry point of `cargo xtask`; everything is in the library.

#![forbid(unsafe_code)]

fn main() -> std::process::ExitCode {
    xtask::exit_code(xtask::run())
}
