//! Addresses as people type them.

use std::net::{SocketAddr, ToSocketAddrs};

/// `HOST:PORT` to listen on; `:PORT` means all interfaces.
pub(crate) fn parse_listen(text: &str) -> Result<SocketAddr, String> {
    let spelled_out = match text.strip_prefix(':') {
        Some(port) => format!("0.0.0.0:{port}"),
        None => text.to_owned(),
    };
    let allowed = "must be HOST:PORT, or :PORT for all interfaces";
    let mut addresses = spelled_out.to_socket_addrs().map_err(|error| format!("{allowed} ({error})"))?;
    addresses.next().ok_or_else(|| format!("{allowed}; the host has no address"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_port_alone_means_all_interfaces() {
        assert_eq!(parse_listen(":9000"), Ok(SocketAddr::from(([0, 0, 0, 0], 9000))));
    }

    #[test]
    fn host_and_port_are_taken_as_they_are() {
        assert_eq!(parse_listen("127.0.0.1:7000"), Ok(SocketAddr::from(([127, 0, 0, 1], 7000))));
        assert!(parse_listen("[::1]:7000").is_ok());
    }

    #[test]
    fn what_is_no_address_is_refused_with_what_is_allowed() {
        for bad in ["", "9000", "127.0.0.1", "127.0.0.1:99999", ":"] {
            let problem = parse_listen(bad).unwrap_err();
            assert!(problem.contains("HOST:PORT"), "{bad}: {problem}");
        }
    }
}
