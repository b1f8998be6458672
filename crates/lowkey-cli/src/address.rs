//! Addresses as people type them.

use std::net::{SocketAddr, ToSocketAddrs};

use lowkey_server::edge::http::HttpHost;

/// Where to listen, and the host's name if it was given as one.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Listen {
    pub(crate) address: SocketAddr,
    pub(crate) name: Option<HttpHost>,
}

/// `HOST:PORT` to listen on; `:PORT` means all interfaces.
pub(crate) fn parse_listen(text: &str) -> Result<Listen, String> {
    let spelled_out = match text.strip_prefix(':') {
        Some(port) => format!("0.0.0.0:{port}"),
        None => text.to_owned(),
    };
    let allowed = "must be HOST:PORT, or :PORT for all interfaces";
    let mut addresses = spelled_out.to_socket_addrs().map_err(|error| format!("{allowed} ({error})"))?;
    let address = addresses.next().ok_or_else(|| format!("{allowed}; the host has no address"))?;
    let name = spelled_out.rsplit_once(':').and_then(|(host, _)| host.parse().ok());
    Ok(Listen { address, name })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_port_alone_means_all_interfaces() {
        let address = SocketAddr::from(([0, 0, 0, 0], 9000));
        assert_eq!(parse_listen(":9000"), Ok(Listen { address, name: None }));
    }

    #[test]
    fn host_and_port_are_taken_as_they_are() {
        let address = SocketAddr::from(([127, 0, 0, 1], 7000));
        assert_eq!(parse_listen("127.0.0.1:7000"), Ok(Listen { address, name: None }));
        assert_eq!(parse_listen("[::1]:7000").unwrap().name, None);
        assert_eq!(parse_listen("localhost:7000").unwrap().name, "localhost".parse().ok());
    }

    #[test]
    fn what_is_no_address_is_refused_with_what_is_allowed() {
        for bad in ["", "9000", "127.0.0.1", "127.0.0.1:99999", ":"] {
            let problem = parse_listen(bad).unwrap_err();
            assert!(problem.contains("HOST:PORT"), "{bad}: {problem}");
        }
    }
}
