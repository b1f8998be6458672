//! The wire API of lowkey: what clients and servers say to each other, and how refusals are told.
//!
//! - [`v1`] is generated from `proto/lowkey/v1/lowkey.proto`, whose comments are the API's
//!   documentation: messages, a client and a server stub, and their JSON form.
//! - [`error`] has every reason for which a request can be refused, with its gRPC code and HTTP
//!   status, in one table.
//! - [`framing`] is how gRPC puts a message on the wire, for code that does it without a library.
//! - [`limits`] has what the service refuses to go beyond, where a client must know it.
//! - [`position`] is where a change stands in history, as watches tell it and are told it.
//! - [`validity`] says until when a client may act as holder (R6, R7).
//!
//! Deliberately absent: I/O and clocks. Nothing here opens a connection or knows what time it is.
//!
//! The JSON form: names in camel case (both casings are read), 64-bit integers as strings (numbers
//! are read too), zero values written out, unknown fields ignored.
//!
//! ```
//! use lowkey_api::v1::{CreateLeaseRequest, CreateLeaseResponse};
//!
//! let request: CreateLeaseRequest = serde_json::from_str(r#"{"owner_id": "worker-1", "ttlSeconds": 10}"#)?;
//! assert_eq!((request.owner_id.as_str(), request.ttl_seconds), ("worker-1", 10));
//!
//! let response = CreateLeaseResponse { lease_id: 1, ttl_seconds: 10 };
//! assert_eq!(serde_json::to_string(&response)?, r#"{"leaseId":"1","ttlSeconds":"10"}"#);
//! # Ok::<(), serde_json::Error>(())
//! ```

pub mod error;
pub mod framing;
pub mod limits;
pub mod position;
mod remaining;
pub mod validity;

pub use error::{ApiError, ErrorDetail, Reason};
pub use position::Position;

/// Package `lowkey.v1`.
pub mod v1 {
    #![allow(
        missing_docs,
        clippy::all,
        clippy::wildcard_imports,
        reason = "generated code; what matters is documented in the proto file"
    )]

    tonic::include_proto!("lowkey.v1");
    include!(concat!(env!("OUT_DIR"), "/lowkey.v1.serde.rs"));
}

/// The package's descriptors, encoded as a `google.protobuf.FileDescriptorSet`: what gRPC reflection serves.
pub const FILE_DESCRIPTOR_SET: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/lowkey.v1.fds"));
