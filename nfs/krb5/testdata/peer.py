# The other side of a context, by MIT's GSS-API. Each line of the input is a command, each line of the output its result.
import sys
import gssapi

ctx = None
for line in sys.stdin:
    w = line.split()
    out = "-"
    try:
        if w[0] == "init":
            name = gssapi.Name(w[1], gssapi.NameType.kerberos_principal)
            flags = gssapi.RequirementFlag.mutual_authentication
            ctx = gssapi.SecurityContext(name=name, usage="initiate", mech=gssapi.MechType.kerberos, flags=flags)
            out = ctx.step().hex()
        elif w[0] == "accept":
            ctx = gssapi.SecurityContext(usage="accept")
            out = ctx.step(bytes.fromhex(w[1])).hex()
        elif w[0] == "finish":
            ctx.step(bytes.fromhex(w[1]))
            out = str(ctx.complete)
        elif w[0] == "who":
            out = str(ctx.initiator_name)
        elif w[0] == "mic":
            out = ctx.get_signature(bytes.fromhex(w[1])).hex()
        elif w[0] == "check":
            ctx.verify_signature(bytes.fromhex(w[1]), bytes.fromhex(w[2]))
        elif w[0] == "wrap":
            out = ctx.wrap(bytes.fromhex(w[1]), True).message.hex()
        elif w[0] == "unwrap":
            r = ctx.unwrap(bytes.fromhex(w[1]))
            out = r.message.hex() if r.encrypted else "not encrypted"
            out = out or "-"
    except Exception as e:
        out = "error: " + str(e).replace("\n", " ")
    print(out, flush=True)
