//! The languages, and how their drivers are built and started.

use std::path::{Path, PathBuf};
use std::process::Command;

/// Which port of a node an SDK uses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Transport {
    Grpc,
    Http,
}

/// A language with an SDK.
pub(crate) struct Language {
    pub(crate) name: &'static str,
    pub(crate) transport: Transport,
    /// Builds what has to be built. Gives the command that starts the driver.
    build: fn(&Path) -> Result<Vec<String>, String>,
}

pub(crate) const LANGUAGES: &[Language] = &[
    Language { name: "rust", transport: Transport::Grpc, build: rust },
    Language { name: "python", transport: Transport::Http, build: python },
    Language { name: "go", transport: Transport::Grpc, build: go },
    Language { name: "typescript", transport: Transport::Http, build: typescript },
];

impl Language {
    /// The command that starts the driver, or what is missing.
    pub(crate) fn prepare(&self) -> Result<Vec<String>, String> {
        (self.build)(&root())
    }
}

/// The root of the repository.
fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").canonicalize().unwrap()
}

/// Runs a command to its end. If it fails, its words are the error.
fn run(command: &mut Command) -> Result<(), String> {
    let output = command.output().map_err(|error| format!("{command:?}: {error}"))?;
    if output.status.success() {
        return Ok(());
    }
    let said = [output.stdout, output.stderr].concat();
    Err(format!("{command:?}: {}: {}", output.status, String::from_utf8_lossy(&said)))
}

fn is_there(program: &str, argument: &str) -> Result<(), String> {
    run(Command::new(program).arg(argument)).map_err(|_| format!("there is no {program} on this machine"))
}

fn text(path: &Path) -> String {
    path.to_str().unwrap().to_owned()
}

/// The driver is an example of the SDK, which cargo builds beside the tests. As a part of the whole workspace: alone,
/// the SDK would choose other features of what it depends on, and compile that anew.
fn rust(root: &Path) -> Result<Vec<String>, String> {
    let cargo = std::env::var("CARGO").unwrap_or_else(|_| "cargo".to_owned());
    run(Command::new(cargo).current_dir(root).args([
        "build",
        "-q",
        "--workspace",
        "--example",
        "conformance_driver",
    ]))?;
    let beside = Path::new(env!("CARGO_BIN_EXE_lowkey")).parent().unwrap();
    Ok(vec![text(&beside.join("examples/conformance_driver"))])
}

fn python(root: &Path) -> Result<Vec<String>, String> {
    is_there("python3", "--version")?;
    Ok(vec!["python3".to_owned(), text(&root.join("sdks/python/conformance_driver.py"))])
}

fn go(root: &Path) -> Result<Vec<String>, String> {
    is_there("go", "version")?;
    let built = Path::new(env!("CARGO_TARGET_TMPDIR")).join("go-conformance-driver");
    run(Command::new("go")
        .current_dir(root.join("sdks/go"))
        .args(["build", "-o"])
        .arg(&built)
        .arg("./cmd/conformance-driver"))?;
    Ok(vec![text(&built)])
}

fn typescript(root: &Path) -> Result<Vec<String>, String> {
    is_there("node", "--version")?;
    is_there("npm", "--version")?;
    let sdk = root.join("sdks/typescript");
    if !sdk.join("node_modules").is_dir() {
        run(Command::new("npm").current_dir(&sdk).args(["ci", "--no-audit", "--no-fund"]))?;
    }
    for script in ["build", "compile"] {
        run(Command::new("npm").current_dir(&sdk).args(["run", "-s", script]))?;
    }
    Ok(vec![text(&sdk.join("conformance-driver"))])
}
