//! `cert`: certificates for encrypted ports, in three commands: `ca`, `node`, `client`.

use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Args, Subcommand};
use serde_json::json;

use super::printed;
use crate::certificates::{self, Place, Use, Written, ca_file};
use crate::exit::{self, CommandFailure};
use crate::output::print_json;

/// By these names and addresses a node is always reached from its own machine.
const LOOPBACK: [&str; 3] = ["localhost", "127.0.0.1", "::1"];
/// The longest name that a certificate may have here.
const NAME_CHARS_MAX: usize = 253;

#[derive(Debug, Args)]
pub(crate) struct CertArgs {
    #[command(subcommand)]
    command: CertCommand,
}

#[derive(Debug, Subcommand)]
enum CertCommand {
    /// Make a CA, which signs the certificates of nodes and clients: ca.pem and ca-key.pem
    Ca(CaArgs),
    /// Make a certificate for nodes: NAME.pem and NAME-key.pem, for --tls-cert and --tls-key
    Node(NodeArgs),
    /// Make a certificate for a client: NAME.pem and NAME-key.pem, for --cert and --key
    Client(ClientArgs),
}

#[derive(Debug, Args)]
#[command(next_help_heading = "Files")]
struct FileArgs {
    /// The folder of the CA and of all that it signs
    #[arg(long, value_name = "DIR", default_value = "certs")]
    dir: PathBuf,

    /// Replace files that are there already
    #[arg(long)]
    force: bool,

    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

#[derive(Debug, Args)]
struct CaArgs {
    /// How long it is valid
    #[arg(long, value_name = "DAYS", default_value_t = 3650, value_parser = clap::value_parser!(u32).range(1..=36_500), help_heading = "The certificate")]
    days: u32,

    #[command(flatten)]
    files: FileArgs,
}

#[derive(Debug, Args)]
struct NodeArgs {
    /// What the files are called; one certificate may serve all nodes
    #[arg(value_name = "NAME", default_value = "node", value_parser = parse_file_name)]
    name: String,

    /// Names and IP addresses by which clients reach the nodes; those of this machine for itself are always there
    #[arg(long, value_name = "HOST,…", value_delimiter = ',', value_parser = parse_host, help_heading = "The certificate")]
    host: Vec<String>,

    /// How long it is valid
    #[arg(long, value_name = "DAYS", default_value_t = 365, value_parser = clap::value_parser!(u32).range(1..=3650), help_heading = "The certificate")]
    days: u32,

    #[command(flatten)]
    files: FileArgs,
}

#[derive(Debug, Args)]
struct ClientArgs {
    /// The client's name: a word such as billing, an e-mail address, or a URI
    #[arg(value_name = "NAME", value_parser = parse_client_name)]
    name: String,

    /// How long it is valid
    #[arg(long, value_name = "DAYS", default_value_t = 365, value_parser = clap::value_parser!(u32).range(1..=3650), help_heading = "The certificate")]
    days: u32,

    #[command(flatten)]
    files: FileArgs,
}

fn is_word(text: &str) -> bool {
    let is_plain = |letter: char| letter.is_ascii_alphanumeric() || matches!(letter, '.' | '-' | '_');
    !text.is_empty()
        && text.len() <= NAME_CHARS_MAX
        && text.chars().all(is_plain)
        && text.starts_with(|letter: char| letter.is_ascii_alphanumeric())
}

fn parse_file_name(text: &str) -> Result<String, String> {
    match text {
        "ca" => Err("is the name of the CA's own files".into()),
        _ if is_word(text) => Ok(text.to_owned()),
        _ => Err("must be letters, digits, '.', '-' and '_', and begin with a letter or digit".into()),
    }
}

fn parse_host(text: &str) -> Result<String, String> {
    let host = text.strip_prefix("*.").unwrap_or(text);
    let is_host = text.parse::<std::net::IpAddr>().is_ok() || is_word(host);
    is_host.then(|| text.to_owned()).ok_or_else(|| "must be a name or an IP address, without a port".into())
}

fn parse_client_name(text: &str) -> Result<String, String> {
    let is_long = text.contains("://") || text.contains('@');
    let is_printed = text.len() <= NAME_CHARS_MAX && text.chars().all(|letter| letter.is_ascii_graphic());
    if is_long && is_printed { Ok(text.to_owned()) } else { parse_file_name(text) }
}

/// The name as part of a path.
fn file_of(name: &str) -> String {
    let plain = |letter: char| if is_word(&format!("a{letter}")) { letter } else { '-' };
    let file: String = name.chars().map(plain).collect();
    if is_word(&file) { file } else { format!("client{file}") }
}

pub(crate) fn cert(args: &CertArgs) -> ExitCode {
    let (files, outcome) = match &args.command {
        CertCommand::Ca(args) => (&args.files, ca(args)),
        CertCommand::Node(args) => (&args.files, node(args)),
        CertCommand::Client(args) => (&args.files, client(args)),
    };
    match outcome {
        Ok(code) => ExitCode::from(code),
        Err(failure) => failure.report(files.json),
    }
}

impl FileArgs {
    fn place(&self) -> Place {
        Place { folder: self.dir.clone(), may_overwrite: self.force }
    }

    /// Tells what was written, and what to do with it.
    fn tell(
        &self,
        made: Result<Written, String>,
        next: impl FnOnce(&Written) -> String,
    ) -> Result<u8, CommandFailure> {
        let written = made.map_err(|problem| CommandFailure::new(exit::NO, problem))?;
        let Written { certificate, key, names, expires_unix } = &written;
        if self.json {
            return printed(print_json(&json!({
                "certificate": certificate.to_string_lossy(),
                "key": key.to_string_lossy(),
                "names": names,
                "expiresUnix": expires_unix,
            })));
        }
        use std::io::Write as _;
        let (certificate, key, names) = (certificate.display(), key.display(), names.join(", "));
        let mut out = std::io::stdout().lock();
        printed(writeln!(out, "{certificate} is for {names}; its key is {key}\n{}", next(&written)))
    }
}

fn ca(args: &CaArgs) -> Result<u8, CommandFailure> {
    args.files.tell(certificates::make_ca(&args.files.place(), args.days), |written| {
        format!(
            "Keep {} where only you can read it. Next: lowkey cert node --host HOST,…",
            written.key.display()
        )
    })
}

fn node(args: &NodeArgs) -> Result<u8, CommandFailure> {
    let mut names = args.host.clone();
    names.extend(
        LOOPBACK
            .iter()
            .filter(|name| !args.host.iter().any(|host| host == *name))
            .map(|name| (*name).to_owned()),
    );
    let made = certificates::make(&args.files.place(), &args.name, Use::Node, &names, args.days);
    args.files.tell(made, |written| {
        format!(
            "Start nodes with --tls-cert {} --tls-key {} --tls-client-ca {}. Next: lowkey cert client NAME",
            written.certificate.display(),
            written.key.display(),
            ca_file(&args.files.dir).display()
        )
    })
}

fn client(args: &ClientArgs) -> Result<u8, CommandFailure> {
    let names = [args.name.clone()];
    let made = certificates::make(&args.files.place(), &file_of(&args.name), Use::Client, &names, args.days);
    args.files.tell(made, |written| {
        format!(
            "For commands: export LOWKEY_CA={} LOWKEY_CERT={} LOWKEY_KEY={}",
            ca_file(&args.files.dir).display(),
            written.certificate.display(),
            written.key.display()
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_words_addresses_or_uris_and_files_stay_in_their_folder() {
        for name in ["billing", "billing.example.com", "ops@example.com", "spiffe://example.com/billing"] {
            assert!(parse_client_name(name).is_ok(), "{name}");
            assert!(is_word(&file_of(name)), "{name}");
        }
        assert_eq!(file_of("spiffe://example.com/../billing"), "spiffe---example.com-..-billing");
        for name in ["", "ca", "a b", "../a", "-a", "a/b", "\u{e4}"] {
            assert!(parse_client_name(name).is_err(), "{name}");
        }
        for host in ["node-1", "10.0.0.1", "::1", "*.example.com"] {
            assert!(parse_host(host).is_ok(), "{host}");
        }
        for host in ["", "node-1:9000", "http://a", "a b", "*"] {
            assert!(parse_host(host).is_err(), "{host}");
        }
    }
}
