//! Keeps out web pages that were not allowed.
//!
//! A browser is a client too. It does what any page tells it, from inside the network. Two kinds of page
//! could use a node without their user's knowledge:
//!
//! - A page of another origin sends requests. It need not read the answers in order to end leases. The
//!   browser tells where the page is from: `Origin`, `Sec-Fetch-Site`.
//! - A page makes its own name resolve to the node's address (DNS rebinding), and is then of the same
//!   origin. The browser still tells the name: `Host`, or `:authority`. An IP address as the host is safe
//!   from this, because no name was resolved.
//!
//! A client that sends none of these headers is not a browser, and passes. This is not access control:
//! other programs can send what they like.

use std::collections::BTreeSet;
use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::str::FromStr;
use std::sync::Arc;

use ::http::{HeaderMap, HeaderName, HeaderValue, Method, StatusCode, header, request};
use axum::extract::{Request, State};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use lowkey_api::v1::Member;
use lowkey_api::{ApiError, Reason};

use super::{body, error_response};
use crate::edge::{Node, shown};

const SEC_FETCH_SITE: HeaderName = HeaderName::from_static("sec-fetch-site");
const SEC_FETCH_MODE: HeaderName = HeaderName::from_static("sec-fetch-mode");

/// Paths that probes and scrapers ask for by names that the node does not know. They change nothing.
const ANY_HOST_PATHS: [&str; 3] = ["/healthz", "/readyz", "/metrics"];

/// Paths that a link on any page may lead to.
const LINKED_PATHS: [&str; 3] = ["/", "/ui", "/ui/"];

/// The longest name that DNS has, in bytes.
const NAME_BYTES_MAX: usize = 253;

/// What the HTTP port is called, and which web pages of other origins may use it.
#[derive(Clone, Debug, Default)]
pub struct Gate {
    /// In lower case, without a dot at the end.
    names: BTreeSet<String>,
    any_host: bool,
    origins: BTreeSet<Origin>,
}

impl Gate {
    /// Lets in requests for `hosts`, besides IP addresses, `localhost`, this machine's own name and the
    /// names in `addresses` (each `HOST:PORT`). Also lets in web pages of `origins`, besides those of the
    /// node itself.
    pub fn new<'a>(
        addresses: impl IntoIterator<Item = &'a str>,
        hosts: impl IntoIterator<Item = HttpHost>,
        origins: impl IntoIterator<Item = HttpOrigin>,
    ) -> Self {
        let mut gate = Self::default();
        gate.names.insert("localhost".to_owned());
        let machine = rustix::system::uname().nodename().to_string_lossy().to_ascii_lowercase();
        if let Some((short, _)) = machine.split_once('.') {
            gate.names.insert(short.to_owned());
        }
        gate.names.insert(machine);
        gate.names.extend(addresses.into_iter().filter_map(name_in));
        for host in hosts {
            match host.0 {
                Some(name) => drop(gate.names.insert(name)),
                None => gate.any_host = true,
            }
        }
        gate.origins.extend(origins.into_iter().map(|origin| origin.0));
        gate
    }

    /// Lets a request in, or says why not. `members` is called only for names that are not known otherwise.
    fn admit(&self, head: &request::Parts, members: impl Fn() -> Vec<Member>) -> Result<Sender, ApiError> {
        let own = self.check_host(head, members)?;
        let sender = self.check_origin(head, own.as_ref())?;
        if sender != Sender::Program && head.method == Method::POST && !is_json(&head.headers) {
            let problem = "a web page must send it with Content-Type: application/json, so that the browser \
                           asks the node before it lets another page do so";
            return Err(ApiError::invalid("body", problem));
        }
        Ok(sender)
    }

    /// The host that the request is for, once it is clear that it means this node.
    fn check_host(
        &self,
        head: &request::Parts,
        members: impl Fn() -> Vec<Member>,
    ) -> Result<Option<Authority>, ApiError> {
        // HTTP/2 has it in `:authority`, and HTTP/1 in the request line if it takes the node for a proxy.
        let in_target = head.uri.authority().map(|authority| authority.as_str());
        let in_headers = head.headers.get_all(header::HOST);
        let is_open = self.any_host || ANY_HOST_PATHS.contains(&head.uri.path());
        if !is_open && in_headers.iter().count() > 1 {
            return Err(ApiError::new(Reason::ForeignHost, "the request has more than one Host header"));
        }
        let mut own = None;
        let in_headers = in_headers.iter().map(|host| host.to_str().unwrap_or("?"));
        // An empty Host is how HTTP says that there is none.
        for text in in_target.into_iter().chain(in_headers.filter(|host| !host.is_empty())) {
            let authority = Authority::parse(text);
            let is_known = match &authority {
                _ if is_open => true,
                None => false,
                Some(Authority { host: Host::Address(_), .. }) => true,
                Some(Authority { host: Host::Name(name), .. }) => {
                    self.names.contains(name) || is_member(name, &members())
                }
            };
            if !is_known {
                return Err(foreign_host(text, authority.as_ref()));
            }
            own = own.or(authority);
        }
        Ok(own)
    }

    /// Whether a web page sent this, and if so, which. `own` is the host that the request is for.
    fn check_origin(&self, head: &request::Parts, own: Option<&Authority>) -> Result<Sender, ApiError> {
        let mut origins = head.headers.get_all(header::ORIGIN).iter();
        let sender = match (origins.next(), origins.next()) {
            (None, _) => Sender::Program,
            (Some(value), None) => {
                let origin = value.to_str().ok().and_then(Origin::parse);
                if origin.as_ref().is_some_and(|origin| self.origins.contains(origin)) {
                    return Ok(Sender::OtherPage(value.clone()));
                }
                if !origin.as_ref().zip(own).is_some_and(|(origin, own)| origin.is_at(own)) {
                    return Err(foreign_origin(value, origin.as_ref()));
                }
                Sender::OwnPage
            }
            (Some(_), Some(_)) => {
                return Err(ApiError::new(
                    Reason::ForeignOrigin,
                    "the request has more than one Origin header",
                ));
            }
        };
        let mut sites = head.headers.get_all(SEC_FETCH_SITE).iter();
        match sites.find(|site| ![b"none".as_slice(), b"same-origin"].contains(&site.as_bytes())) {
            Some(site) if !is_followed_link(head) => Err(foreign_site(site)),
            _ => Ok(sender),
        }
    }
}

/// Who sent a request that was let in.
#[derive(Debug, PartialEq)]
enum Sender {
    /// Not a browser; or a browser that its user, not a page, sent here.
    Program,
    /// A page of the node's own.
    OwnPage,
    /// A page of an origin that was named to the node.
    OtherPage(HeaderValue),
}

/// Stands before every route of the HTTP port.
pub(super) async fn gate<N: Node>(
    State((gate, node)): State<(Arc<Gate>, Arc<N>)>,
    request: Request,
    next: Next,
) -> Response {
    let (head, body) = request.into_parts();
    let admitted = gate.admit(&head, || node.get_status().members);
    let mut response = match &admitted {
        Ok(Sender::OtherPage(_)) if is_preflight(&head) => {
            body::drain(body).await;
            preflight_response()
        }
        Ok(_) => next.run(Request::from_parts(head, body)).await,
        Err(error) => {
            tracing::debug!(%error, path = %shown(head.uri.path()), "refused what a web page may have sent");
            body::drain(body).await;
            error_response(error)
        }
    };
    if !gate.origins.is_empty() {
        response.headers_mut().append(header::VARY, HeaderValue::from_static("Origin"));
    }
    if let Ok(Sender::OtherPage(origin)) = admitted {
        let exposed = HeaderValue::from_static("lowkey-cluster, lowkey-revision, retry-after");
        response.headers_mut().insert(header::ACCESS_CONTROL_ALLOW_ORIGIN, origin);
        response.headers_mut().insert(header::ACCESS_CONTROL_EXPOSE_HEADERS, exposed);
    }
    response
}

/// Whether this is a browser's question if a page may send what it wants to send.
fn is_preflight(head: &request::Parts) -> bool {
    head.method == Method::OPTIONS && head.headers.contains_key(header::ACCESS_CONTROL_REQUEST_METHOD)
}

fn preflight_response() -> Response {
    let headers = [
        (header::ACCESS_CONTROL_ALLOW_METHODS, "GET, POST, DELETE"),
        // A page that holds a token shows it itself: browsers send no cookies here, and none would count.
        (header::ACCESS_CONTROL_ALLOW_HEADERS, "authorization, content-type, idempotency-key, last-event-id"),
        (header::ACCESS_CONTROL_MAX_AGE, "600"),
    ];
    (StatusCode::NO_CONTENT, headers).into_response()
}

/// Whether a person followed a link to a page that any page may link to.
fn is_followed_link(head: &request::Parts) -> bool {
    let mode = head.headers.get(SEC_FETCH_MODE).map(HeaderValue::as_bytes);
    head.method == Method::GET && mode == Some(b"navigate") && LINKED_PATHS.contains(&head.uri.path())
}

/// Whether the content type is JSON and nothing else.
fn is_json(headers: &HeaderMap) -> bool {
    let mut content_types = headers.get_all(header::CONTENT_TYPE).iter();
    let (Some(content_type), None) = (content_types.next(), content_types.next()) else { return false };
    let essence = content_type.to_str().ok().and_then(|text| text.split(';').next());
    essence.is_some_and(|essence| essence.trim().eq_ignore_ascii_case("application/json"))
}

fn is_member(name: &str, members: &[Member]) -> bool {
    let addresses =
        members.iter().flat_map(|member| [&member.http_address, &member.grpc_address, &member.raft_address]);
    addresses.filter_map(|address| name_in(address)).any(|known| known == name)
}

fn foreign_host(text: &str, authority: Option<&Authority>) -> ApiError {
    let text = shown(text);
    let remedy = match authority {
        Some(Authority { host: Host::Name(name), .. }) => {
            format!("start the node with --http-host {} if this name is meant to reach it", shown(name))
        }
        _ => "a host is a name or an IP address, and a port".to_owned(),
    };
    let message = format!(
        "the request is for the host {text:?}, which is no name of this cluster; {remedy}. (A web page could have \
         sent it, by a name of its own that leads here.)"
    );
    ApiError::new(Reason::ForeignHost, message).with("host", text)
}

fn foreign_origin(value: &HeaderValue, origin: Option<&Origin>) -> ApiError {
    let text = shown(&String::from_utf8_lossy(value.as_bytes()));
    let remedy = match origin {
        Some(origin) => {
            let origin = shown(&origin.to_string());
            format!(
                "if pages from there are meant to, and you trust them, start the node with --http-origin {origin}"
            )
        }
        None => "only pages with an origin of their own can be let in, with --http-origin".to_owned(),
    };
    let message = format!("a web page from {text:?} sent this, and may not use this node; {remedy}");
    ApiError::new(Reason::ForeignOrigin, message).with("origin", text)
}

fn foreign_site(site: &HeaderValue) -> ApiError {
    let site = shown(&String::from_utf8_lossy(site.as_bytes()));
    let message = format!(
        "a web page from elsewhere sent this (Sec-Fetch-Site: {site}), and may not use this node; to look at it \
         yourself, type the address into the browser; to let a page in, start the node with --http-origin ORIGIN"
    );
    ApiError::new(Reason::ForeignOrigin, message).with("site", site)
}

/// A host, in the one form in which it can be compared.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Host {
    Address(IpAddr),
    /// In lower case, without a dot at the end.
    Name(String),
}

impl Host {
    /// Parses the part before the port. The zone of an IPv6 address says nothing about the other end.
    fn parse(text: &str) -> Option<Self> {
        if let Some(inside) = text.strip_prefix('[') {
            let address = inside.strip_suffix(']')?.split('%').next()?;
            return address.parse::<Ipv6Addr>().ok().map(|address| Self::Address(address.into()));
        }
        let text = text.strip_suffix('.').unwrap_or(text);
        if let Ok(address) = text.parse::<Ipv4Addr>() {
            return Some(Self::Address(address.into()));
        }
        let is_name = (1..=NAME_BYTES_MAX).contains(&text.len())
            && text.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte));
        is_name.then(|| Self::Name(text.to_ascii_lowercase()))
    }
}

impl fmt::Display for Host {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Address(IpAddr::V6(address)) => write!(f, "[{address}]"),
            Self::Address(address) => write!(f, "{address}"),
            Self::Name(name) => f.write_str(name),
        }
    }
}

/// `HOST` or `HOST:PORT`, and nothing else: a user's name before it is refused.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Authority {
    host: Host,
    port: Option<u16>,
}

impl Authority {
    fn parse(text: &str) -> Option<Self> {
        let (host, port) = match text.rsplit_once(':') {
            // The last colon of an IPv6 address.
            Some(_) if text.ends_with(']') => (text, None),
            Some((host, "")) => (host, None),
            Some((host, port)) if port.bytes().all(|byte| byte.is_ascii_digit()) => {
                (host, Some(port.parse().ok()?))
            }
            Some(_) => return None,
            None => (text, None),
        };
        Some(Self { host: Host::parse(host)?, port })
    }
}

/// The name in an address `HOST:PORT`, if its host is not an IP address.
fn name_in(address: &str) -> Option<String> {
    match Authority::parse(address)?.host {
        Host::Name(name) => Some(name),
        Host::Address(_) => None,
    }
}

/// Where a web page is from: `SCHEME://HOST[:PORT]`.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Origin {
    /// In lower case.
    scheme: String,
    host: Host,
    /// `None` where the scheme has no usual port, and none is given.
    port: Option<u16>,
}

impl Origin {
    fn parse(text: &str) -> Option<Self> {
        let (scheme, rest) = text.split_once("://")?;
        let is_scheme = scheme.starts_with(|c: char| c.is_ascii_alphabetic())
            && scheme.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"+-.".contains(&byte));
        if !is_scheme {
            return None;
        }
        let scheme = scheme.to_ascii_lowercase();
        let Authority { host, port } = Authority::parse(rest)?;
        let port = port.or_else(|| usual_port(&scheme));
        Some(Self { scheme, host, port })
    }

    /// Whether a page from here belongs to the node that was asked as `own`. The node cannot see whether a
    /// proxy in front of it ends TLS, so either scheme is accepted.
    fn is_at(&self, own: &Authority) -> bool {
        let usual_port = usual_port(&self.scheme);
        usual_port.is_some() && self.host == own.host && self.port == own.port.or(usual_port)
    }
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}://{}", self.scheme, self.host)?;
        match self.port {
            Some(port) if self.port != usual_port(&self.scheme) => write!(f, ":{port}"),
            _ => Ok(()),
        }
    }
}

/// The default port of a scheme.
fn usual_port(scheme: &str) -> Option<u16> {
    match scheme {
        "http" => Some(80),
        "https" => Some(443),
        _ => None,
    }
}

/// A further name by which the HTTP port is asked: `--http-host`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HttpHost(
    /// `None` is any name at all.
    Option<String>,
);

impl FromStr for HttpHost {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match Host::parse(text) {
            _ if text == "*" => Ok(Self(None)),
            Some(Host::Name(name)) => Ok(Self(Some(name))),
            Some(Host::Address(_)) => Err("must be a name: IP addresses are taken anyway".to_owned()),
            None => Err("must be a name such as locks.example.com, without a port, or * for any".to_owned()),
        }
    }
}

/// Another origin whose web pages may use the HTTP port: `--http-origin`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HttpOrigin(Origin);

impl FromStr for HttpOrigin {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let allowed = "must be SCHEME://HOST or SCHEME://HOST:PORT, such as https://dash.example.com";
        Origin::parse(text).map(Self).ok_or_else(|| allowed.to_owned())
    }
}
