//! What a verified client certificate says about its holder.

use std::sync::Arc;

/// The names in the certificate of a client: its subject alternative names. The certificate was verified
/// against `--tls-client-ca` when the connection began. Each request of the connection carries this as an
/// extension; without a certificate there is none.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CertificateNames(pub Arc<[String]>);
