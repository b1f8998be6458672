//! Who may do what: for operators. All of it needs the verb `admin` on `/`, but for [`Client::who_am_i`].

use lowkey_api::v1::access_service_client::AccessServiceClient;
use lowkey_api::v1::{
    AddPrincipalRequest, CheckAccessRequest, CheckAccessResponse, GrantAccessRequest, ListPrincipalsRequest,
    ListPrincipalsResponse, NewTokenRequest, NewTokenResponse, RemovePrincipalRequest, RequireAccessRequest,
    RevokeAccessRequest, RevokeTokenRequest, WhoAmIRequest, WhoAmIResponse, WouldBeRefused,
};

use crate::client::{Client, Effect};
use crate::error::Error;
use crate::random;

/// Asks a method of the service for something.
macro_rules! ask {
    ($client:expr, $effect:ident, $method:ident($request:expr)) => {
        $client
            .inner
            .unary_by(Effect::$effect, &$request, |wire, request| async move {
                AccessServiceClient::new(wire).$method(request).await
            })
            .await
    };
}

impl Client {
    /// Makes a principal, or gives one that exists more names of certificates.
    ///
    /// ```no_run
    /// # async fn example(client: lowkey_client::Client) -> Result<(), Box<dyn std::error::Error>> {
    /// client.add_principal("billing", ["billing.example.com"]).await?;
    /// client.grant_access("billing", "billing", ["acquire", "read"]).await?;
    /// std::fs::write("billing.token", client.new_token("billing").await?.token)?;
    /// # Ok(())
    /// # }
    /// ```
    pub async fn add_principal<S: Into<String>>(
        &self,
        principal: impl Into<String>,
        certificate_names: impl IntoIterator<Item = S>,
    ) -> Result<(), Error> {
        let request = AddPrincipalRequest {
            principal: principal.into(),
            certificate_names: certificate_names.into_iter().map(Into::into).collect(),
            request_id: random::request_id(),
        };
        ask!(self, Change, add_principal(request)).map(drop)
    }

    /// Takes a principal away, with its proofs and grants; or only one name of its certificates.
    pub async fn remove_principal(
        &self,
        principal: impl Into<String>,
        certificate_name: Option<String>,
    ) -> Result<(), Error> {
        let request = RemovePrincipalRequest {
            principal: principal.into(),
            certificate_name: certificate_name.unwrap_or_default(),
            request_id: random::request_id(),
        };
        ask!(self, Change, remove_principal(request)).map(drop)
    }

    /// Who may do what: every principal, or this one.
    pub async fn principals(&self, principal: Option<String>) -> Result<ListPrincipalsResponse, Error> {
        let request = ListPrincipalsRequest { principal: principal.unwrap_or_default() };
        ask!(self, None, list_principals(request))
    }

    /// Makes a token for a principal. Nobody can be told it again.
    pub async fn new_token(&self, principal: impl Into<String>) -> Result<NewTokenResponse, Error> {
        let request = NewTokenRequest { principal: principal.into(), request_id: random::request_id() };
        // Asked twice, there are two tokens, and one of them nobody knows.
        ask!(self, Change, new_token(request))
    }

    /// Makes a token worthless, by its id.
    pub async fn revoke_token(&self, token_id: impl Into<String>) -> Result<(), Error> {
        let request = RevokeTokenRequest { token_id: token_id.into(), request_id: random::request_id() };
        ask!(self, Change, revoke_token(request)).map(drop)
    }

    /// Allows a principal these verbs on a path: `acquire`, `read`, `watch`, `audit`, `admin`. `/` is everything.
    pub async fn grant_access<S: Into<String>>(
        &self,
        principal: impl Into<String>,
        path: impl Into<String>,
        verbs: impl IntoIterator<Item = S>,
    ) -> Result<(), Error> {
        let request = GrantAccessRequest {
            principal: principal.into(),
            path: path.into(),
            verbs: verbs.into_iter().map(Into::into).collect(),
            request_id: random::request_id(),
        };
        ask!(self, Change, grant_access(request)).map(drop)
    }

    /// Takes these verbs away from what a principal was granted on exactly this path.
    pub async fn revoke_access<S: Into<String>>(
        &self,
        principal: impl Into<String>,
        path: impl Into<String>,
        verbs: impl IntoIterator<Item = S>,
    ) -> Result<(), Error> {
        let request = RevokeAccessRequest {
            principal: principal.into(),
            path: path.into(),
            verbs: verbs.into_iter().map(Into::into).collect(),
            request_id: random::request_id(),
        };
        ask!(self, Change, revoke_access(request)).map(drop)
    }

    /// From now on nobody may do anything without a proof and a grant; or anybody may do everything again.
    ///
    /// Fails with the reason `ADMIN_NEEDED` while no principal may manage access and can prove it.
    pub async fn require_access(&self, required: bool) -> Result<(), Error> {
        let request = RequireAccessRequest { required, dry_run: false, request_id: random::request_id() };
        ask!(self, Change, require_access(request)).map(drop)
    }

    /// Who would have been refused in the last hour, had access been required: by any node. One that did not
    /// answer is among them, with a count of 0.
    pub async fn would_be_refused(&self) -> Result<Vec<WouldBeRefused>, Error> {
        let request = RequireAccessRequest { required: true, dry_run: true, request_id: String::new() };
        Ok(ask!(self, None, require_access(request))?.would_be_refused)
    }

    /// Whether a principal may do something, and why.
    pub async fn check_access(
        &self,
        principal: impl Into<String>,
        verb: impl Into<String>,
        name: impl Into<String>,
    ) -> Result<CheckAccessResponse, Error> {
        let request =
            CheckAccessRequest { principal: principal.into(), verb: verb.into(), name: name.into() };
        ask!(self, None, check_access(request))
    }

    /// Who this client is to the cluster.
    pub async fn who_am_i(&self) -> Result<WhoAmIResponse, Error> {
        let request = WhoAmIRequest {};
        ask!(self, None, who_am_i(request))
    }
}
