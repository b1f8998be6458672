//! The handshake with a client, and what its certificate says.

use std::io;

use rustls::pki_types::CertificateDer;
use rustls::{AlertDescription, CertificateError};
use tokio::net::TcpStream;
use tokio_rustls::server::TlsStream;
use x509_parser::prelude::{FromDer as _, GeneralName, X509Certificate};

use super::Tls;
use crate::edge::CertificateNames;

/// The first byte of every TLS connection: a record with a handshake. No HTTP request begins with it.
const HANDSHAKE_RECORD: u8 = 0x16;

/// Whether a connection begins as TLS does. The bytes stay where they are. A connection that ends without a
/// word is none.
pub(in crate::edge) async fn is_client_hello(stream: &TcpStream) -> io::Result<bool> {
    let mut first = [0];
    Ok(stream.peek(&mut first).await? == 1 && first[0] == HANDSHAKE_RECORD)
}

/// A connection after its handshake.
pub(in crate::edge) struct Encrypted {
    pub(in crate::edge) stream: TlsStream<TcpStream>,
    /// The client's certificate, and those between it and its CA; empty without one.
    pub(in crate::edge) chain: Vec<CertificateDer<'static>>,
    pub(in crate::edge) names: Option<CertificateNames>,
}

/// Why there was no handshake.
#[derive(Debug)]
pub(in crate::edge) struct HandshakeError {
    /// What to do about it, for the log; `None` if the client merely left.
    pub(in crate::edge) advice: Option<&'static str>,
    pub(in crate::edge) error: io::Error,
}

/// Makes a connection an encrypted one.
pub(in crate::edge) async fn handshake(tls: &Tls, stream: TcpStream) -> Result<Encrypted, HandshakeError> {
    let acceptor = tls.now().acceptor.clone();
    let stream = acceptor.accept(stream).await.map_err(|error| {
        tls.count_failed();
        HandshakeError { advice: advice(&error), error }
    })?;
    let chain: Vec<CertificateDer<'static>> = stream
        .get_ref()
        .1
        .peer_certificates()
        .unwrap_or_default()
        .iter()
        .map(|one| one.clone().into_owned())
        .collect();
    let names = chain.first().map(|leaf| CertificateNames(names(leaf).into()));
    Ok(Encrypted { stream, chain, names })
}

/// The subject alternative names: DNS names, then URIs, then e-mail addresses.
fn names(leaf: &CertificateDer<'_>) -> Vec<String> {
    let Ok((_, certificate)) = X509Certificate::from_der(leaf) else { return Vec::new() };
    let Ok(Some(extension)) = certificate.subject_alternative_name() else { return Vec::new() };
    let all = &extension.value.general_names;
    let of_kind = |kind: fn(&GeneralName<'_>) -> Option<String>| all.iter().filter_map(kind);
    let dns =
        of_kind(|name| if let GeneralName::DNSName(name) = name { Some((*name).to_owned()) } else { None });
    let uris =
        of_kind(|name| if let GeneralName::URI(name) = name { Some((*name).to_owned()) } else { None });
    let mails =
        of_kind(
            |name| if let GeneralName::RFC822Name(name) = name { Some((*name).to_owned()) } else { None },
        );
    dns.chain(uris).chain(mails).collect()
}

fn advice(error: &io::Error) -> Option<&'static str> {
    let error = error.get_ref()?.downcast_ref::<rustls::Error>()?;
    Some(match error {
        rustls::Error::NoCertificatesPresented => {
            "it showed no certificate, and --tls-client-ca demands one; give it one (--cert and --key; `lowkey cert \
             client` makes them)"
        }
        rustls::Error::InvalidCertificate(
            CertificateError::UnknownIssuer | CertificateError::BadSignature,
        ) => "no CA of --tls-client-ca signed its certificate",
        rustls::Error::InvalidCertificate(
            CertificateError::Expired | CertificateError::ExpiredContext { .. },
        ) => "its certificate has expired; make a new one, for example with `lowkey cert client --force`",
        rustls::Error::InvalidCertificate(_) => "its certificate is not valid for a client",
        rustls::Error::AlertReceived(
            AlertDescription::UnknownCA
            | AlertDescription::BadCertificate
            | AlertDescription::CertificateUnknown
            | AlertDescription::CertificateExpired
            | AlertDescription::UnrecognisedName,
        ) => {
            "it does not trust the certificate of --tls-cert; give it the CA that signed it (--ca), and check the names \
             in the certificate and its end"
        }
        rustls::Error::PeerIncompatible(_) => "it speaks neither TLS 1.3 nor TLS 1.2 as this node does",
        _ => "it does not speak TLS as it must",
    })
}

#[cfg(test)]
mod tests {
    use rcgen::{CertificateParams, KeyPair, SanType};

    use super::*;

    #[test]
    fn names_come_in_the_order_dns_uri_mail() {
        let mut params = CertificateParams::new(vec!["10.0.0.1".to_owned()]).unwrap();
        params.subject_alt_names.extend([
            SanType::Rfc822Name("a@example.com".try_into().unwrap()),
            SanType::URI("spiffe://example.com/billing".try_into().unwrap()),
            SanType::DnsName("billing".try_into().unwrap()),
            SanType::DnsName("billing.example.com".try_into().unwrap()),
        ]);
        let certificate = params.self_signed(&KeyPair::generate().unwrap()).unwrap();
        assert_eq!(
            names(certificate.der()),
            ["billing", "billing.example.com", "spiffe://example.com/billing", "a@example.com"]
        );
        assert!(names(&CertificateDer::from_slice(b"no certificate")).is_empty());
    }
}
