//! `cis token create`, `list`, `revoke`.

use cis_api::calls::{CreateToken, RevokeToken};
use cis_api::error::Success;
use cis_api::token::{CreateTokenBody, TokenPath};
use cis_api::{Nothing, Request};
use cis_core::access::Preset;
use cis_core::dag::parse::duration;
use cis_core::error::ErrorCode;
use cis_core::id::Scope;
use cis_core::source::{Clock, Millis};
use cis_engine::system::System;
use serde_json::json;

use super::{Failure, Outcome, Setup, list};
use crate::cli::TokenCommand;
use crate::term::Table;
use crate::term::table::Cell;

pub(super) fn token(setup: &Setup, command: TokenCommand) -> Outcome {
    match command {
        TokenCommand::Create { identity, preset, scopes, expires } => {
            create(setup, identity, &preset, &scopes, expires.as_deref())
        }
        TokenCommand::List => show(setup),
        TokenCommand::Revoke { token_id } => revoke(setup, &token_id),
    }
}

fn create(
    setup: &Setup,
    identity: String,
    preset: &str,
    scopes: &[String],
    expires: Option<&str>,
) -> Outcome {
    let Some(preset) = Preset::from_word(preset) else {
        let words: Vec<String> = Preset::WORDS.iter().map(|(word, _)| format!("`{word}`")).collect();
        return Err(Failure::usage(format!("`{preset}` is none of {}", words.join(", "))));
    };
    let lasts = expires.map(duration::from_text).transpose().map_err(Failure::usage)?;
    let body = token_body(identity, preset, self::scopes(scopes)?, lasts);
    let made = setup.call(&Request::<CreateToken>::new(Nothing {}, Nothing {}, body))?;
    if setup.json {
        say_json!(json!(Success::new(made)));
    } else {
        say!("{}", made.token);
        tell!("hint: this is shown once; `cis token revoke {}` takes it back", made.token_id);
    }
    Ok(0)
}

/// What is asked for. Whole seconds are told as such.
pub(super) fn token_body(
    identity: String,
    preset: Preset,
    scopes: Option<Vec<Scope>>,
    lasts: Option<Millis>,
) -> CreateTokenBody {
    let is_whole = |lasts: &Millis| lasts.0.is_multiple_of(1_000);
    let expires_sec = lasts.filter(is_whole).map(|lasts| lasts.0 / 1_000);
    let expires_ms = lasts.filter(|lasts| !is_whole(lasts)).map(|lasts| lasts.0);
    CreateTokenBody { identity, preset, scopes, expires_sec, expires_ms }
}

/// Scopes as they were typed; none means all of them.
pub(super) fn scopes(given: &[String]) -> Result<Option<Vec<Scope>>, Failure> {
    if let Some(wrong) = given.iter().find(|scope| !Scope::is_well_formed(scope)) {
        return Err(Failure::usage(format!("`{wrong}` is no scope: `global`, `project-…` or `user-…`")));
    }
    let scopes: Vec<Scope> = given.iter().filter_map(|scope| scope.parse().ok()).collect();
    Ok((!scopes.is_empty()).then_some(scopes))
}

fn show(setup: &Setup) -> Outcome {
    let tokens = match setup.source()? {
        Some(source) => source.tokens()?,
        None => Vec::new(),
    };
    if setup.json {
        say_json!(json!({"success": true, "tokens": tokens}));
        return Ok(0);
    }
    let now = System.now();
    let mut table = Table::new(&["TOKEN", "IDENTITY", "ROLES", "SCOPES", "STATE"]);
    for token in tokens {
        let roles: Vec<&str> = token.caller.roles.iter().map(|role| role.word()).collect();
        let scopes = match &token.caller.scopes {
            Some(scopes) => scopes.iter().map(Scope::as_str).collect::<Vec<_>>().join(" "),
            None => "all".to_owned(),
        };
        let state = match (token.revoked_at, token.is_good(now)) {
            (Some(_), _) => "revoked",
            (None, false) => "run out",
            (None, true) => "good",
        };
        table.row(
            [token.token_id, token.caller.identity.clone(), roles.join(" "), scopes, state.to_owned()]
                .map(Cell::from),
        );
    }
    list::print(&table);
    Ok(0)
}

fn revoke(setup: &Setup, token_id: &str) -> Outcome {
    let path = TokenPath { id: token_id.to_owned() };
    let mut target = setup.target(false)?;
    let revoked = target.call(&Request::<RevokeToken>::new(path, Nothing {}, Nothing {}));
    target.close()?;
    let revoked = match revoked {
        Err(refusal) if refusal.code == ErrorCode::NotFound => {
            return Err(Failure::new(ErrorCode::NotFound, format!("no token `{token_id}` that is good"))
                .hint("`cis token list` shows them"));
        }
        revoked => revoked?,
    };
    if setup.json {
        say_json!(json!(Success::new(revoked)));
    } else {
        say!("Revoked {token_id}");
    }
    Ok(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whole_seconds_are_told_as_seconds_and_others_exactly() {
        let body = |lasts| token_body("a".to_owned(), Preset::Agent, None, lasts);
        let told = |lasts| (body(lasts).expires_sec, body(lasts).expires_ms);
        assert_eq!(told(None), (None, None));
        assert_eq!(told(Some(Millis(3_600_000))), (Some(3_600), None));
        assert_eq!(told(Some(Millis(1_500))), (None, Some(1_500)));
    }
}
