//! `cis token create`, `list`, `revoke`.

use cis_core::access::{Caller, Preset};
use cis_core::dag::parse::duration;
use cis_core::error::ErrorCode;
use cis_core::id::Scope;
use cis_core::source::{Clock, Millis};
use cis_engine::command::Command;
use cis_engine::session::Session;
use cis_engine::system::{System, user};
use cis_engine::token::FreshToken;
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
    let scopes = self::scopes(scopes)?;
    let made = match setup.elsewhere()? {
        Some(node) => node.create_token(&identity, preset, scopes.as_deref(), lasts)?,
        None => create_here(setup, Caller::preset(identity, preset, scopes), lasts)?,
    };
    if setup.json {
        say_json!(json!({"success": true, "token_id": made.token_id, "token": made.secret}));
    } else {
        say!("{}", made.secret);
        tell!("hint: this is shown once; `cis token revoke {}` takes it back", made.token_id);
    }
    Ok(0)
}

fn create_here(setup: &Setup, caller: Caller, lasts: Option<Millis>) -> Result<FreshToken, Failure> {
    let expires_at = lasts.map(|lasts| System.now().after(lasts));
    let mut session = Session::open(setup.options()?)?;
    let made = session.ask(Command::CreateToken { caller, by: user(), expires_at }).and_then(|r| r.token());
    session.close()?;
    Ok(made?)
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
    let tokens = match setup.view()? {
        Some(view) => view.tokens()?,
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
    let revoked = match setup.elsewhere()? {
        Some(node) => node.revoke_token(token_id)?,
        None => revoke_here(setup, token_id)?,
    };
    if !revoked {
        return Err(Failure::new(ErrorCode::NotFound, format!("no token `{token_id}` that is good"))
            .hint("`cis token list` shows them"));
    }
    if setup.json {
        say_json!(json!({"success": true, "token_id": token_id, "status": "revoked"}));
    } else {
        say!("Revoked {token_id}");
    }
    Ok(0)
}

fn revoke_here(setup: &Setup, token_id: &str) -> Result<bool, Failure> {
    let mut session = Session::open(setup.options()?)?;
    let revoked =
        session.ask(Command::RevokeToken { token_id: token_id.to_owned() }).and_then(|reply| reply.revoked());
    session.close()?;
    Ok(revoked?)
}
