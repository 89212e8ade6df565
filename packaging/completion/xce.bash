# Completion of xce-agent, xce-broker and xce-reporter. Generated: python docs/generate.py man
_xce() {
    local program=${1##*/} word=${COMP_WORDS[COMP_CWORD]} words
    case $program/${COMP_WORDS[1]-} in
        xce-agent/run) words='--config --claim --wait' ;;
        xce-agent/status) words='--json --watch --socket --config' ;;
        xce-agent/inventory) words='--json --kind --record --anonymous --reason --help --from --here --groups --socket --config' ;;
        xce-agent/topology) words='--matrix --tree --json --svg --from --here --groups --socket --config' ;;
        xce-agent/discovery) words='--socket --config' ;;
        xce-agent/reporter) words='list test lint explain reset record --help --json --socket --config --runs --for --external' ;;
        xce-agent/explain) words='--json --socket --config' ;;
        xce-agent/claim) words='--json --file --instances --consumer --user --profile --wait --socket --config' ;;
        xce-agent/csi) words='--json --config --socket --size --access --type --parameter --secrets' ;;
        xce-agent/doctor) words='--json --config' ;;
        xce-agent/join) words='--token --name --config --timeout --no-start' ;;
        xce-agent/key) words='--config --timeout' ;;
        xce-agent/removal) words='--csi --config' ;;
        xce-reporter/run) words='--config' ;;
        xce-reporter/join) words='--token --name --config --timeout' ;;
        xce-reporter/status) words='--json --watch --socket --config' ;;
        xce-reporter/explain) words='--json --socket --config' ;;
        xce-reporter/replay) words='--speed --loop --help' ;;
        xce-reporter/simulate) words='--once --help' ;;
        xce-reporter/fleet) words='--broker --key --broker-key --prefix --first --interval --seed --machine --claims' ;;
        xce-broker/run) words='--config --start-empty --help' ;;
        xce-broker/status) words='--broker --key --broker-key --timeout --peers --json --help' ;;
        xce-broker/hosts) words='--broker --key --broker-key --timeout --state --problems --json --help' ;;
        xce-broker/host) words='add admit release --help --group --join-within --reason --broker --key --broker-key --timeout --instance --template --json' ;;
        xce-broker/drain) words='--broker --key --broker-key --timeout --reason --end --json --help' ;;
        xce-broker/hold) words='--broker --key --broker-key --timeout --reason --label --end --owner --json --help' ;;
        xce-broker/supply) words='--broker --key --broker-key --timeout --host --location --presence --problems --json --help' ;;
        xce-broker/instances) words='--broker --key --broker-key --timeout --kind --problems --json --help' ;;
        xce-broker/types) words='--broker --key --broker-key --timeout --json --help' ;;
        xce-broker/pools) words='--broker --key --broker-key --timeout --json --help' ;;
        xce-broker/pool) words='set --help --base --borrowed --broker --key --broker-key --timeout --op-id --json' ;;
        xce-broker/claim) words='create list show bind wait release delete watch --help --instances --scratch --consumer --wait --problems --binding --force --reason --form --owner --project --access --reclaim --provider --mount --ports --shared --env --profile --json --broker --key --broker-key --timeout --file --host --gang --state --definition --user --job --index --read-only --within --count --seconds' ;;
        xce-broker/provide) words='--broker --key --broker-key --timeout --name --seconds --help' ;;
        xce-broker/quarantine) words='list set clear --help --reason --host --json --broker --key --broker-key --timeout' ;;
        xce-broker/doctor) words='--config --json --help' ;;
        xce-broker/watch) words='--broker --key --broker-key --timeout --location --count --seconds --json --help' ;;
        xce-broker/snapshot) words='--broker --key --broker-key --timeout --inventories --json --help' ;;
        xce-broker/key) words='new add revoke list rotate --hosts --help --role --offline --reason --directory --json --broker --key --broker-key --timeout --finish' ;;
        xce-broker/backup) words='--broker --key --broker-key --timeout --config --help' ;;
        xce-broker/restore) words='--config --help' ;;
        xce-broker/export) words='--broker --key --broker-key --timeout --from --config --help' ;;
        xce-broker/token) words='new list revoke --help --hosts --out --lifetime --admit --role --broker --key --broker-key --timeout --json --reason' ;;
        xce-broker/join) words='--token --name --role --directory --timeout --help' ;;
        *) words='' ;;
    esac
    if ((COMP_CWORD == 1)); then
        case $program in
            xce-agent) words='run status inventory topology discovery reporter explain claim csi doctor join key removal --help --version' ;;
            xce-reporter) words='run join status explain replay simulate fleet --help --version' ;;
            xce-broker) words='run status hosts host drain hold supply instances types pools pool claim provide quarantine doctor watch snapshot key backup restore export token join --help --version' ;;
        esac
    fi
    mapfile -t COMPREPLY < <(compgen -W "$words" -- "$word")
    ((${#COMPREPLY[@]})) || mapfile -t COMPREPLY < <(compgen -f -- "$word")
}
complete -F _xce xce-agent xce-reporter xce-broker
