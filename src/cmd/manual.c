/* SPDX-License-Identifier: MIT
 * manual.c - `sluice man` and `sluice completion`: the manual page and the shells' completion, put
 * together from what each command prints for --help=FORM.
 */
#include "cmd/manual.h"

#include "cmd/help.h"
#include "sluice.h"

#include <stdio.h>
#include <string.h>

static const char man_before[] =
    ".TH SLUICE 1 \"\" \"sluice " SLUICE_VERSION "\" \"User Commands\"\n"
    ".SH NAME\nsluice \\- run, chat with and serve open\\-weight language models\n"
    ".SH SYNOPSIS\n.B sluice\n.I COMMAND\n[\\fIMODEL\\fR] [\\fIFLAGS\\fR]\n"
    ".SH DESCRIPTION\n"
    "sluice is an inference engine and server for open\\-weight language models. \\fIMODEL\\fR is "
    "a Hugging Face folder (safetensors), a GGUF file, or a name of the hub: "
    "\\fIorg/name\\fR, \\fIorg/name:QUANT\\fR or \\fIorg/name/file.gguf\\fR, which is looked up in "
    "the Hugging Face cache and downloaded when it is missing. Without one the bundled "
    "story\\-teller answers. A flag is written \\fB\\-\\-name value\\fR or "
    "\\fB\\-\\-name=value\\fR; \\fB\\-\\-no\\-name\\fR turns a switch off; `_' may stand for "
    "`\\-'.\n"
    ".SH COMMANDS\n";

static const char man_after[] =
    ".SH EXIT STATUS\n"
    ".TP\n0\nsuccess.\n.TP\n1\nthe work failed.\n.TP\n2\nthe command line or the input was at "
    "fault.\n"
    ".SH ENVIRONMENT\n"
    "Names of the hub only: \\fBHF_HOME\\fR, \\fBHF_HUB_CACHE\\fR, \\fBHF_TOKEN\\fR, "
    "\\fBHF_TOKEN_PATH\\fR, \\fBHF_ENDPOINT\\fR, \\fBHF_HUB_OFFLINE\\fR, "
    "\\fBHF_HUB_DOWNLOAD_TIMEOUT\\fR, \\fBSSL_CERT_FILE\\fR and the proxies of \\fBcurl\\fR(1) "
    "mean what they mean to Hugging Face's tools.\n"
    ".SH FILES\n.TP\n.I ~/.cache/huggingface/hub\nthe cache of models, unless the environment or "
    "\\fB\\-\\-download\\-dir\\fR says otherwise.\n";

static const char bash_before[] =
    "# bash completion for sluice; made by `sluice completion bash`\n"
    "_sluice() {\n"
    "    local cur=\"${COMP_WORDS[COMP_CWORD]}\" command=\"${COMP_WORDS[1]}\" flags=\n"
    "    if [ \"$COMP_CWORD\" -eq 1 ]; then\n"
    "        COMPREPLY=($(compgen -W \"$_sluice_commands --help --version\" -- \"$cur\"))\n"
    "        return\n"
    "    fi\n"
    "    [ \"$command ${COMP_WORDS[2]}\" = 'bench serve' ] && command='bench serve'\n"
    "    case \"$command\" in\n";

static const char bash_after[] = "    esac\n"
                                 "    case \"$cur\" in\n"
                                 "    -*) COMPREPLY=($(compgen -W \"$flags\" -- \"$cur\")) ;;\n"
                                 "    *) COMPREPLY=() ;; # file names, by -o default\n"
                                 "    esac\n"
                                 "}\n"
                                 "complete -o default -F _sluice sluice\n";

static const char zsh_before[] = "#compdef sluice\n"
                                 "# zsh completion for sluice; made by `sluice completion zsh`\n";

static const char zsh_middle[] = "    if (( CURRENT == 2 )); then\n"
                                 "        _describe command commands\n"
                                 "        return\n"
                                 "    fi\n"
                                 "    local command=$words[2]\n"
                                 "    [[ $command == bench && $words[3] == serve ]] && "
                                 "command='bench serve'\n"
                                 "    shift words\n    (( CURRENT-- ))\n"
                                 "    case $command in\n";

static const char zsh_after[] = "    esac\n}\n_sluice \"$@\"\n";

/* What each command says to --help=form, and of bench its second form too. */
static int each(const struct sl_command *const *commands, size_t n, const char *form)
{
    char flag[32];
    snprintf(flag, sizeof flag, "--help=%s", form);
    for (size_t i = 0; i < n; i++) {
        char *argv[] = {(char *)(uintptr_t)commands[i]->name, flag, NULL, NULL};
        int status = commands[i]->run(2, argv);
        if (status != SL_EXIT_OK)
            return status;
        if (strcmp(commands[i]->name, "bench") != 0 || strcmp(form, "fish") == 0)
            continue; /* fish: conditions look at single words */
        argv[2] = flag;
        argv[1] = (char *)(uintptr_t) "serve";
        status = commands[i]->run(3, argv);
        if (status != SL_EXIT_OK)
            return status;
    }
    return SL_EXIT_OK;
}

int sl_manual(const struct sl_command *const *commands, size_t n)
{
    fputs(man_before, stdout);
    int status = each(commands, n, "man");
    fputs(man_after, stdout);
    return status;
}

static int bash(const struct sl_command *const *commands, size_t n)
{
    fputs("_sluice_commands='", stdout);
    for (size_t i = 0; i < n; i++)
        printf("%s%s", i > 0 ? " " : "", commands[i]->name);
    fputs("'\n", stdout);
    fputs(bash_before, stdout);
    int status = each(commands, n, "bash");
    fputs(bash_after, stdout);
    return status;
}

static int zsh(const struct sl_command *const *commands, size_t n)
{
    fputs(zsh_before, stdout);
    fputs("_sluice() {\n    local -a commands\n    commands=(", stdout);
    for (size_t i = 0; i < n; i++)
        printf("\n        '%s:%s'", commands[i]->name, commands[i]->summary);
    fputs(")\n", stdout);
    fputs(zsh_middle, stdout);
    int status = each(commands, n, "zsh");
    fputs(zsh_after, stdout);
    return status;
}

int sl_completion(const struct sl_command *const *commands, size_t n, const char *shell)
{
    if (shell != NULL && strcmp(shell, "bash") == 0)
        return bash(commands, n);
    if (shell != NULL && strcmp(shell, "zsh") == 0)
        return zsh(commands, n);
    if (shell != NULL && strcmp(shell, "fish") == 0)
        return each(commands, n, "fish");
    fputs("sluice completion: which shell? bash, zsh or fish\n", stderr);
    return SL_EXIT_USAGE;
}
