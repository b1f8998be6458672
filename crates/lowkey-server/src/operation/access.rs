//! Who may do what.

use lowkey_api::v1::{
    AccessGrant, AddPrincipalRequest, AddPrincipalResponse, CheckAccessRequest, CheckAccessResponse,
    GrantAccessRequest, GrantAccessResponse, ListPrincipalsRequest, ListPrincipalsResponse, NewTokenRequest,
    NewTokenResponse, Principal, RemovePrincipalRequest, RemovePrincipalResponse, RequireAccessRequest,
    RequireAccessResponse, RevokeAccessRequest, RevokeAccessResponse, RevokeTokenRequest,
    RevokeTokenResponse, WhoAmIRequest, WhoAmIResponse,
};
use lowkey_api::{ApiError, Reason};
use lowkey_core::{
    AccessChange, Caller, CertificateName, Command, GrantPath, Invalid, On, PrincipalName, Proof, Reply,
    TokenHash, TokenId, Verb, Verbs,
};
use lowkey_replica::{Query, Request, Response};

use super::{Answer, Operation, unexpected};
use crate::access::{Permitted, new_token};
use crate::edge::Node as _;
use crate::peers::proto::{AccessChanged, AddTokenRequest, SetRequiredRequest};
use crate::service::Service;

fn change(change: AccessChange) -> Request {
    Request::Command(Command::Access(Box::new(change)))
}

/// An answer that says that it is done, and nothing else.
fn done<T: Default>(response: &Response) -> Result<T, ApiError> {
    match response {
        Response::Applied(Reply::AccessChanged) => Ok(T::default()),
        other => Err(unexpected(other)),
    }
}

fn verbs(names: &[String]) -> Result<Verbs, Invalid> {
    let verbs: Verbs = names.iter().map(|name| Verb::parse(name)).collect::<Result<_, _>>()?;
    match verbs.is_empty() {
        true => Err(Invalid::new("verbs", "must be at least one of acquire, read, watch, audit, admin")),
        false => Ok(verbs),
    }
}

impl Operation for AddPrincipalRequest {
    fn parse(&self) -> Result<Request, Invalid> {
        let names = self.certificate_names.iter().map(|name| CertificateName::parse(name));
        Ok(change(AccessChange::AddPrincipal {
            principal: PrincipalName::parse(&self.principal)?,
            names: names.collect::<Result<_, _>>()?,
        }))
    }

    fn respond(&self, response: Response) -> Result<AddPrincipalResponse, ApiError> {
        done(&response)
    }
}

impl Operation for RemovePrincipalRequest {
    fn parse(&self) -> Result<Request, Invalid> {
        let principal = PrincipalName::parse(&self.principal)?;
        Ok(change(match self.certificate_name.as_str() {
            "" => AccessChange::RemovePrincipal { principal },
            name => {
                let name = CertificateName::parse(name)
                    .map_err(|invalid| Invalid::new("certificate_name", invalid.problem))?;
                AccessChange::RemoveName { principal, name }
            }
        }))
    }

    fn respond(&self, response: Response) -> Result<RemovePrincipalResponse, ApiError> {
        done(&response)
    }
}

impl Operation for AddTokenRequest {
    fn parse(&self) -> Result<Request, Invalid> {
        let hash = <[u8; 32]>::try_from(self.hash.as_slice());
        Ok(change(AccessChange::AddToken {
            principal: PrincipalName::parse(&self.principal)?,
            token: TokenId::parse(&self.token_id)?,
            hash: TokenHash(hash.map_err(|_| Invalid::new("body", "must have a hash of 32 bytes"))?),
        }))
    }

    fn respond(&self, response: Response) -> Result<AccessChanged, ApiError> {
        done(&response)
    }
}

impl Answer for NewTokenRequest {
    async fn answer(call: Permitted<Self>, service: &Service) -> Result<NewTokenResponse, ApiError> {
        // The secret is made here and told to whom asks. The leader, and the log, see its hash.
        let (token, token_id, hash) =
            new_token().map_err(|error| ApiError::new(Reason::Internal, error.to_string()))?;
        let token_id = token_id.to_string();
        let principal = call.wanted().principal.clone();
        let add = AddTokenRequest { principal, token_id: token_id.clone(), hash: hash.0.to_vec() };
        service.operate(call.as_part(add)).await?;
        Ok(NewTokenResponse { token, token_id })
    }
}

impl Operation for RevokeTokenRequest {
    fn parse(&self) -> Result<Request, Invalid> {
        Ok(change(AccessChange::RevokeToken { token: TokenId::parse(&self.token_id)? }))
    }

    fn respond(&self, response: Response) -> Result<RevokeTokenResponse, ApiError> {
        done(&response)
    }
}

impl Operation for GrantAccessRequest {
    fn parse(&self) -> Result<Request, Invalid> {
        Ok(change(AccessChange::Grant {
            principal: PrincipalName::parse(&self.principal)?,
            path: GrantPath::parse(&self.path)?,
            verbs: verbs(&self.verbs)?,
        }))
    }

    fn respond(&self, response: Response) -> Result<GrantAccessResponse, ApiError> {
        done(&response)
    }
}

impl Operation for RevokeAccessRequest {
    fn parse(&self) -> Result<Request, Invalid> {
        Ok(change(AccessChange::Revoke {
            principal: PrincipalName::parse(&self.principal)?,
            path: GrantPath::parse(&self.path)?,
            verbs: verbs(&self.verbs)?,
        }))
    }

    fn respond(&self, response: Response) -> Result<RevokeAccessResponse, ApiError> {
        done(&response)
    }
}

impl Operation for SetRequiredRequest {
    fn parse(&self) -> Result<Request, Invalid> {
        Ok(change(AccessChange::Require { required: self.required }))
    }

    fn respond(&self, response: Response) -> Result<AccessChanged, ApiError> {
        done(&response)
    }
}

impl Answer for RequireAccessRequest {
    async fn answer(call: Permitted<Self>, service: &Service) -> Result<RequireAccessResponse, ApiError> {
        let Self { required, dry_run, .. } = *call.wanted();
        if dry_run {
            return Ok(service.rehearsed_everywhere().await);
        }
        service.operate(call.as_part(SetRequiredRequest { required })).await?;
        Ok(RequireAccessResponse::default())
    }
}

impl Operation for ListPrincipalsRequest {
    fn parse(&self) -> Result<Request, Invalid> {
        if !self.principal.is_empty() {
            PrincipalName::parse(&self.principal)?;
        }
        Ok(Request::Read(Query::Access))
    }

    fn respond(&self, response: Response) -> Result<ListPrincipalsResponse, ApiError> {
        let Response::Access(access) = response else { return Err(unexpected(&response)) };
        let is_wanted = |name: &PrincipalName| self.principal.is_empty() || name.as_str() == self.principal;
        let principals: Vec<_> = access
            .principals()
            .filter(|(name, _)| is_wanted(name))
            .map(|(name, principal)| Principal {
                principal: name.to_string(),
                certificate_names: principal.names.iter().map(ToString::to_string).collect(),
                token_ids: principal.tokens.keys().map(ToString::to_string).collect(),
                grants: grants(principal),
            })
            .collect();
        if principals.is_empty() && !self.principal.is_empty() {
            return Err(no_principal(&self.principal));
        }
        Ok(ListPrincipalsResponse { required: access.is_required(), principals })
    }
}

fn no_principal(name: &str) -> ApiError {
    ApiError::new(Reason::PrincipalNotFound, format!("there is no principal {name}")).with("principal", name)
}

fn grants(principal: &lowkey_core::Principal) -> Vec<AccessGrant> {
    let grant = |(path, verbs): (&GrantPath, &Verbs)| AccessGrant {
        path: path.to_string(),
        verbs: verbs.iter().map(|verb| verb.as_str().to_owned()).collect(),
    };
    principal.grants.iter().map(grant).collect()
}

impl Answer for CheckAccessRequest {
    async fn answer(call: Permitted<Self>, service: &Service) -> Result<CheckAccessResponse, ApiError> {
        let Self { principal: name, verb, name: place } = call.wanted();
        let invalid = |field| move |invalid: Invalid| ApiError::invalid(field, invalid.problem);
        let parsed = PrincipalName::parse(name).map_err(invalid("principal"))?;
        let verb = Verb::parse(verb).map_err(invalid("verb"))?;
        let place = GrantPath::parse(place).map_err(invalid("name"))?;
        let table = service.guard().table();
        let principal = table.principal(&parsed).ok_or_else(|| no_principal(name))?;
        let on = if place.is_everything() { On::Everything } else { On::Name(place.as_str()) };
        let by = principal.grants.iter().find(|(path, verbs)| {
            let covers = path.is_everything() || !place.is_everything() && path.covers_name(place.as_str());
            covers && verbs.has(verb)
        });
        let why = match by {
            Some((path, verbs)) => format!("{name} has {verbs} on {path}"),
            None => format!("{name} has no {verb} {on}; what it has: {}", all_grants(principal)),
        };
        let proofs = principal.names.len() + principal.tokens.len();
        let unproven =
            if proofs == 0 { "; and it has no proof yet: a token or a name of a certificate" } else { "" };
        Ok(CheckAccessResponse {
            permitted: by.is_some(),
            why: format!("{why}{unproven}"),
            required: table.is_required(),
        })
    }
}

fn all_grants(principal: &lowkey_core::Principal) -> String {
    let all: Vec<_> = principal.grants.iter().map(|(path, verbs)| format!("{verbs} on {path}")).collect();
    if all.is_empty() { "nothing".to_owned() } else { all.join("; ") }
}

impl Answer for WhoAmIRequest {
    async fn answer(call: Permitted<Self>, service: &Service) -> Result<WhoAmIResponse, ApiError> {
        let table = service.guard().table();
        let required = table.is_required();
        let nobody = WhoAmIResponse { required, ..WhoAmIResponse::default() };
        let Caller::Principal(identity) = call.caller() else { return Ok(nobody) };
        let Ok(Some((name, principal))) = table.stands(call.caller()) else { return Ok(nobody) };
        let proof = match &identity.proof {
            Proof::Token(token) => token.to_string(),
            Proof::Certificate(name) => name.to_string(),
        };
        Ok(WhoAmIResponse { principal: name.to_string(), proof, required, grants: grants(principal) })
    }
}
